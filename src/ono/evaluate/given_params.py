"""Numbers of whole samples for a prediction: tables go by their names, arrays by their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ono.data.array_files import parse_source, read_array
from ono.data.info import Array
from ono.data.layout import Axes
from ono.data.table import read_table
from ono.errors import InputError


def read_params(
    known: Sequence[str],
    texts: Sequence[str],
    files: Sequence[str] | None = None,
    axes: Axes | None = None,
    notes: list[str] | None = None,
) -> Array | None:
    """Return the numbers [samples known] in the order of training; None where none are given.

    Columns of a table that the operator does not know are left out. The columns of arrays, which
    have no names, stand for those that no table has. `files` are the samples that a table's column
    `file` may name, `axes` the order of an array's axes if it is not [samples numbers]. `notes` get
    what was decided about the rows of tables.
    """
    if not texts:
        return None
    told = ", ".join(texts)
    if not known:
        raise InputError(f"this operator was trained without params; leave out --params {told}")
    named: dict[str, Array] = {}
    unnamed: list[Array] = []
    for text in texts:
        path, key = parse_source(text)
        if path.suffix.lower() == ".csv":
            table = read_table(path, files)
            if twice := [name for name in table.names if name in named and name in known]:
                raise InputError(f"{told} have the column {twice[0]} twice; leave one out")
            named |= dict(zip(table.names, table.numbers.T, strict=True))
            if notes is not None:
                notes += table.notes
        else:
            array = read_array(path, key)
            if array.ndim not in (1, 2):
                raise InputError(f"params {text} must be [samples numbers], got {array.shape}")
            array = array.T if axes == ("c", "b") else array
            unnamed += list(array.reshape(len(array), -1).T)
    missing = [name for name in known if name not in named]
    if len(missing) != len(unnamed):
        if not unnamed:
            raise InputError(f"{told} lacks {', '.join(missing)}")
        raise InputError(
            f"params must be {', '.join(known)}; {told} has {len(unnamed)} columns without a name "
            f"for {', '.join(missing) or 'none of them'}"
        )
    columns = {**named, **dict(zip(missing, unnamed, strict=True))}
    chosen = [columns[name] for name in known]
    counts = {len(column) for column in chosen} | ({len(files)} if files is not None else set())
    if len(counts) > 1:
        raise InputError(f"{told}: every sample needs its numbers, got {sorted(counts)} of them")
    return np.stack(chosen, -1)
