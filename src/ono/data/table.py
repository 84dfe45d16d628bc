"""Numbers of whole samples from a CSV table: a header of names, one row per sample."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ono.data.info import Array
from ono.errors import InputError

FILE_COLUMN = "file"


@dataclass(frozen=True, slots=True)
class Table:
    """Names and numbers [rows columns]; `notes` say what was decided about the rows."""

    names: list[str]
    numbers: Array
    notes: tuple[str, ...] = ()


def read_table(path: Path, files: Sequence[str] | None = None) -> Table:
    """Read a table whose rows are the samples.

    With a column `file`, rows are matched to `files` by name; without, they keep their order. A
    table for arrays, which are no files, must not have that column.
    """
    header, rows = _read_cells(path)
    at = [k for k, name in enumerate(header) if name.lower() == FILE_COLUMN]
    columns = [k for k in range(len(header)) if k not in at]
    names = [header[k] for k in columns]
    if len(at) > 1 or not all(names) or len(set(names)) != len(names):
        raise InputError(f"{path} must begin with different column names, got {', '.join(header)}")
    notes: tuple[str, ...] = ()
    if at and files is None:
        raise InputError(
            f"{path} has a column `{FILE_COLUMN}`, which matches rows to mesh files; samples "
            "of arrays have no file names: put the rows in their order and remove the column"
        )
    if at and files is not None:
        chosen = _rows_of_files(path, [row[at[0]] for row in rows], files)
        rows = [rows[k] for k in chosen]
    elif files is not None:
        if len(rows) != len(files):
            raise InputError(f"{path} has {len(rows)} rows for {len(files)} files")
        _refuse_two_orders(path, files)
        notes = (
            f"rows of {path.name} taken in the order {_shown(files)} (a column `{FILE_COLUMN}` "
            "would match them by name)",
        )
    try:
        numbers = np.array([[float(row[k]) for k in columns] for row in rows])
    except ValueError as error:
        raise InputError(f"{path} must hold numbers below its header: {error}") from None
    return Table(names, numbers, notes)


def _read_cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table, all of one length."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as text:
            header, *rows = [
                [cell.strip() for cell in row] for row in csv.reader(text) if any(row)
            ] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a CSV table: {error}") from None
    if len(header) == 1 and ";" in header[0]:
        raise InputError(
            f"{path} has `;` in its header, so its columns seem to be separated by semicolons, and "
            "its numbers may have decimal commas; save it with commas between columns and points "
            "in numbers"
        )
    if header and all(map(_is_number, header)):
        raise InputError(
            f"{path} begins with the numbers {', '.join(header)}, so it seems to have no header; "
            "put a line with the names of the columns above them"
        )
    if not rows:
        raise InputError(f"{path} holds no rows below its header")
    for line, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise InputError(
                f"{path} line {line} has {len(row)} columns, its header {len(header)}; give every "
                "line all of them, and decimals a point"
            )
    return header, rows


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rows_of_files(path: Path, given: Sequence[str], files: Sequence[str]) -> list[int]:
    """Return the row of every file. A row may leave the suffix out where one file only fits."""
    stems = Counter(Path(file).stem for file in files)
    known = {Path(file).stem: file for file in files if stems[Path(file).stem] == 1}
    known |= {file: file for file in files}
    meant = [known.get(Path(name).name, Path(name).name) for name in given]
    rows = {file: row for row, file in enumerate(meant)}
    if len(rows) < len(meant):
        raise InputError(f"{path} names a file twice in its column `{FILE_COLUMN}`")
    if missing := [file for file in files if file not in rows]:
        other = [name for name, file in zip(given, meant, strict=True) if file not in files]
        raise InputError(
            f"{path} has no row for {missing[0]} ({len(missing)} files lack one); its column "
            f"`{FILE_COLUMN}` has, for example, {(other or given)[0]!r}: name the files as they "
            "are called"
        )
    return [rows[file] for file in files]


def _refuse_two_orders(path: Path, files: Sequence[str]) -> None:
    """Refuse rows without names for files whose order is another by number than by letter."""
    if (by_letter := sorted(files)) != list(files):
        raise InputError(
            f"{path} has no column `{FILE_COLUMN}`, and its rows could be for {_shown(files)} or "
            f"for {_shown(by_letter)}; add a column `{FILE_COLUMN}` with the names of the files"
        )


def _shown(files: Sequence[str]) -> str:
    """Return the first names and the last, as many as tell their order.

    >>> _shown(["1.vtu", "2.vtu", "3.vtu", "4.vtu", "5.vtu"])
    '1.vtu, 2.vtu, ..., 5.vtu'
    """
    return ", ".join(files if len(files) < 5 else [*files[:2], "...", files[-1]])
