from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ono.data.info import Array
from ono.data.table import Table, read_table
from ono.errors import InputError

FILES = ("m0.vtu", "m1.vtu", "m2.vtu")


def read(folder: Path, text: str, files: Sequence[str] | None = FILES) -> Table:
    (folder / "t.csv").write_text(text)
    return read_table(folder / "t.csv", files)


def first(table: Table) -> Array:
    column: Array = table.numbers[:, 0]
    return column


@pytest.mark.parametrize("head", ["file", "File", "FILE"])
def test_rows_go_by_the_column_file(tmp_path: Path, head: str) -> None:
    table = read(tmp_path, f"nu,{head}\n7,m2.vtu\n8,runs/m0.vtu\n9,m1.vtu\n6,m9.vtu\n")
    assert table.names == ["nu"]
    assert first(table).tolist() == [8, 9, 7]
    assert table.notes == ()


def test_names_without_suffix_are_matched_where_one_file_fits(tmp_path: Path) -> None:
    table = read(tmp_path, "file,nu\nm2,7\nm0,8\nm1.vtu,9\n")
    assert first(table).tolist() == [8, 9, 7]
    table = read(tmp_path, "file,nu\nrun.1,7\nrun.2,8\n", ("run.1.vtu", "run.2.vtu"))
    assert first(table).tolist() == [7, 8]
    with pytest.raises(InputError, match=r"no row for m0.vtk \(2 files lack one\).*'m0'"):
        read(tmp_path, "file,nu\nm0,7\nm1,8\n", ("m0.vtk", "m0.vtu"))


def test_rows_without_names_keep_their_order_and_it_is_said(tmp_path: Path) -> None:
    table = read(tmp_path, "nu\n7\n8\n9\n")
    assert first(table).tolist() == [7, 8, 9]
    (note,) = table.notes
    assert note.startswith("rows of t.csv taken in the order m0.vtu, m1.vtu, m2.vtu (a column `fi")
    many = [f"{k:02}.vtu" for k in range(1, 25)]
    (note,) = read(tmp_path, "nu\n" + "1\n" * 24, many).notes
    assert "in the order 01.vtu, 02.vtu, ..., 24.vtu (" in note
    assert read(tmp_path, "nu\n7\n8\n", None).notes == ()


def test_rows_without_names_are_refused_where_files_have_two_orders(tmp_path: Path) -> None:
    files = ("m1.vtu", "m2.vtu", "m10.vtu")
    with pytest.raises(
        InputError,
        match=r"could be for m1.vtu, m2.vtu, m10.vtu or for m1.vtu, m10.vtu, m2.vtu; add a column",
    ):
        read(tmp_path, "nu\n7\n8\n9\n", files)
    table = read(tmp_path, "nu,file\n7,m1\n8,m2\n9,m10\n", files)
    assert first(table).tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("E\n1\n2\n", "2 rows for 3 files"),
        ("E\n1\n2\nsteel\n", "must hold numbers"),
        ("E,E\n1,1\n2,2\n3,3\n", "different column names"),
        ("E,\n1,1\n2,2\n3,3\n", "different column names"),
        ("file,File,E\nm0,m0,1\nm1,m1,2\nm2,m2,3\n", "different column names"),
        ("E,file\n1,m0.vtu\n2,m1.vtu\n3,M2.VTU\n", "no row for m2.vtu .1 files.*'M2.VTU': name"),
        ("E,file\n1,m0.vtu\n2,m1.vtu\n", "no row for m2.vtu .*for example, 'm0.vtu'"),
        ("mu,file\n1,m0.vtu\n2,m1.vtu\n3,m0\n", "names a file twice"),
        ("E,nu\n1,2\n3\n4,5\n", "line 3 has 1 columns, its header 2"),
        ("E,nu\n1,5,2,5\n", "line 2 has 4 columns, its header 2;.* decimals a point"),
        ("E;nu\n1,5;2\n", "`;` in its header.* separated by semicolons, .*decimal commas; save it"),
        ("1,2e3\n2,3\n3,4\n4,5\n", "begins with the numbers 1, 2e3, .*no header; put a line"),
        ("E\n", "no rows"),
        ("", "no rows"),
    ],
)
def test_a_table_that_cannot_be_taken_says_why(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read(tmp_path, text)


def test_samples_of_arrays_have_no_file_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="column `file`, which matches rows to mesh files"):
        read(tmp_path, "File,nu\na,1\n", None)
