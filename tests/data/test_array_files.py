from __future__ import annotations

import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from ono.data.array_files import keys, open_rows, parse_source, read_array
from ono.data.info import Array
from ono.errors import DataError

FIELD = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
HEADER = b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Mon Jan 01 00:00:00 2024 HDF5 schema"


def save_v73(path: Path, *, header: bool = True, classes: bool = True, **arrays: Array) -> None:
    """Write what MATLAB's `save -v7.3` writes: a user block, reversed axes, class attributes."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in arrays.items():
            data = file.create_dataset(name, data=array.T)
            if classes:
                kind = {"float32": "single", "float64": "double"}[str(array.dtype)]
                data.attrs["MATLAB_class"] = np.bytes_(kind)
    if header:
        with path.open("r+b") as block:
            block.write(HEADER.ljust(124) + b"\x00\x02IM")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", FIELD)
    np.savez(tmp_path / "a.npz", u=FIELD, k=np.arange(3))
    savemat(tmp_path / "v5.mat", {"u": FIELD, "k": np.arange(3.0), "title": "flow"})
    savemat(tmp_path / "small.mat", {"u": FIELD}, do_compression=True)
    save_v73(tmp_path / "v73.mat", u=FIELD, k=np.arange(3.0)[None])
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["group/u"] = FIELD
        file["k"] = np.arange(3)
        file["name"] = "flow"
    return tmp_path


@pytest.mark.parametrize(
    "source", ["a.npy", "a.npz:u", "v5.mat:u", "small.mat", "v73.mat:u", "plain.h5:group/u"]
)
def test_every_format_gives_the_array_its_author_wrote(folder: Path, source: str) -> None:
    path, key = parse_source(str(folder / source))
    array = read_array(path, key)
    np.testing.assert_array_equal(array, FIELD)
    assert array.dtype == np.float32
    with open_rows(path, key) as rows:
        assert rows.shape == FIELD.shape
        np.testing.assert_array_equal(rows[1:2], FIELD[1:2])


def test_npy_is_mapped_not_read(folder: Path) -> None:
    array = read_array(folder / "a.npy")
    assert isinstance(array, np.memmap)
    assert not array.flags.writeable


def test_keys_are_the_numeric_arrays_with_their_shapes(folder: Path) -> None:
    assert keys(folder / "a.npy") == {"": (2, 3, 4)}
    assert keys(folder / "a.npz") == {"u": (2, 3, 4), "k": (3,)}
    assert keys(folder / "v5.mat") == {"u": (2, 3, 4), "k": (1, 3)}
    assert keys(folder / "v73.mat") == {"u": (2, 3, 4), "k": (1, 3)}
    assert keys(folder / "plain.h5") == {"group/u": (2, 3, 4), "k": (3,)}


@pytest.mark.parametrize(("header", "classes"), [(True, False), (False, True)])
def test_either_sign_of_matlab_turns_the_axes(tmp_path: Path, header: bool, classes: bool) -> None:
    save_v73(tmp_path / "a.mat", header=header, classes=classes, u=FIELD)
    np.testing.assert_array_equal(read_array(tmp_path / "a.mat"), FIELD)


def test_hdf5_called_mat_without_those_signs_is_taken_as_it_is(tmp_path: Path) -> None:
    save_v73(tmp_path / "a.mat", header=False, classes=False, u=FIELD)
    assert read_array(tmp_path / "a.mat").shape == (4, 3, 2)


def test_matlab_text_empties_and_cells_are_not_arrays(tmp_path: Path) -> None:
    save_v73(tmp_path / "a.mat", u=FIELD)
    with h5py.File(tmp_path / "a.mat", "r+") as file:
        text = file.create_dataset("title", data=np.array([[102], [108]], np.uint16))
        text.attrs["MATLAB_class"] = np.bytes_("char")
        empty = file.create_dataset("none", data=np.zeros(2, np.uint64))
        empty.attrs["MATLAB_class"], empty.attrs["MATLAB_empty"] = np.bytes_("double"), 1
        file["#refs#/a"] = np.zeros(3)
        pair = np.zeros((2, 2), [("real", "<f8"), ("imag", "<f8")])
        file.create_dataset("z", data=pair).attrs["MATLAB_class"] = np.bytes_("double")
    assert keys(tmp_path / "a.mat") == {"u": (2, 3, 4)}
    for key, word in {"title": "a char array", "none": "nothing", "z": "complex numbers"}.items():
        with pytest.raises(DataError, match=f"a.mat:{key} holds {word}.*only real numbers"):
            read_array(tmp_path / "a.mat", key)


@pytest.mark.parametrize("name", ["a.npz", "v5.mat", "v73.mat", "plain.h5"])
def test_a_wrong_key_gets_the_list_and_the_nearest(folder: Path, name: str) -> None:
    near = "group/v" if name == "plain.h5" else "uu"
    with pytest.raises(DataError, match=rf"{name} has no '{near}', it holds .*did you mean"):
        read_array(folder / name, near)


def test_a_choice_must_be_made_where_there_is_one(folder: Path) -> None:
    with pytest.raises(DataError, match=r"v5.mat holds k, u; name one as .*v5.mat:KEY"):
        read_array(folder / "v5.mat")
    with pytest.raises(DataError, match=r"one array without a name; leave out :u"):
        read_array(folder / "a.npy", "u")


def test_pickles_are_refused(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}, None], dtype=object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "a.npz", u=objects)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(FIELD))
    (tmp_path / "b.npy").write_bytes(pickle.dumps(FIELD))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(DataError, match=r"holds (objects|no numbers)"):
            read_array(tmp_path / name)
    with pytest.raises(DataError, match=r"a.npz:u holds objects"):
        read_array(tmp_path / "a.npz", "u")
    for name in ("a.pkl", "b.npy"):
        with pytest.raises(DataError, match=r"is a pickle"):
            read_array(tmp_path / name)


def test_complex_numbers_are_refused(tmp_path: Path) -> None:
    wave = np.array([1j, 2.0])
    np.save(tmp_path / "a.npy", wave)
    savemat(tmp_path / "a.mat", {"u": wave})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"] = wave
    for name in ("a.npy", "a.mat", "a.h5"):
        with pytest.raises(DataError, match="complex numbers" if name != "a.h5" else "no numbers"):
            read_array(tmp_path / name)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "v5.mat", "small.mat", "v73.mat", "plain.h5"])
@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_truncated_file_is_named(folder: Path, name: str, kept: float) -> None:
    path = folder / name
    os.truncate(path, int(kept * path.stat().st_size))
    with pytest.raises(DataError, match=rf"{name} (cannot be read|has no 'u'|holds no numbers)"):
        read_array(path, None if name in ("a.npy", "small.mat") else "u")


def test_what_is_no_array_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file .*a.npy"):
        read_array(tmp_path / "a.npy")
    (tmp_path / "a.npy").touch()
    with pytest.raises(DataError, match=r"a.npy is empty"):
        read_array(tmp_path / "a.npy")
    (tmp_path / "a.csv").write_text("1,2\n")
    with pytest.raises(DataError, match=r"a.csv is none of"):
        keys(tmp_path / "a.csv")
    with pytest.raises(DataError, match="cannot be read"):
        read_array(tmp_path)


def test_a_file_may_have_colons_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "run:1.npz"
    np.savez(path, u=FIELD)
    assert parse_source(str(path)) == (path, None)
    assert parse_source(f"{path}:u") == (path, "u")
