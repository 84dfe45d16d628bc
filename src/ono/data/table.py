"""Numbers of whole samples from a CSV table: a header of names, one row per sample."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ono.data.info import Array
from ono.errors import InputError

FILE_COLUMN = "file"


def read_table(path: Path, files: Sequence[str] | None = None) -> tuple[list[str], Array]:
    """Return the names and the numbers [rows columns] of a table.

    With a column `file`, rows are matched to `files` by name; without, they keep their order. A
    table for arrays, which are no files, must not have that column.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as text:
            header, *rows = [
                [cell.strip() for cell in row] for row in csv.reader(text) if any(row)
            ] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a CSV table: {error}") from None
    if not rows:
        raise InputError(f"{path} holds no rows below its header")
    if wrong := [line for line, row in enumerate(rows, 2) if len(row) != len(header)]:
        raise InputError(f"{path} line {wrong[0]} has not the {len(header)} columns of its header")
    if FILE_COLUMN in header:
        if files is None:
            raise InputError(
                f"{path} has a column `{FILE_COLUMN}`, which matches rows to mesh files; samples "
                "of arrays have no file names: put the rows in their order and remove the column"
            )
        at = header.index(FILE_COLUMN)
        by_name = {Path(row[at]).name: row for row in rows}
        if len(by_name) < len(rows):
            raise InputError(f"{path} names a file twice in its column `{FILE_COLUMN}`")
        if missing := [file for file in files if file not in by_name]:
            raise InputError(f"{path} has no row for {missing[0]} ({len(missing)} files lack one)")
        rows = [by_name[file] for file in files]
    columns = [k for k, name in enumerate(header) if name != FILE_COLUMN]
    names = [header[k] for k in columns]
    if not all(names) or len(set(names)) != len(names):
        raise InputError(f"{path} must begin with different column names, got {', '.join(header)}")
    if files is not None and len(rows) != len(files):
        raise InputError(f"{path} has {len(rows)} rows for {len(files)} files")
    try:
        numbers = np.array([[float(row[k]) for k in columns] for row in rows])
    except ValueError as error:
        raise InputError(f"{path} must hold numbers below its header: {error}") from None
    return names, numbers
