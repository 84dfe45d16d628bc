from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from ono.data.array_files import keys
from ono.data.array_writer import refuse_unwritable, write_arrays
from ono.errors import InputError


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("p.mat", ["u x", "u_x"]),
        ("p.mat", ["2", "v_2"]),
        ("p.h5", ["u", "u/x"]),
        ("p.hdf5", ["a/b/c", "v", "a/b"]),
        ("p.h5", ["u", "./u"]),
    ],
)
def test_arrays_that_would_overwrite_each_other_are_refused(
    tmp_path: Path, file: str, names: list[str]
) -> None:
    arrays = {name: np.full(3, float(k)) for k, name in enumerate(names)}
    with pytest.raises(InputError, match="overwrite each other"):
        write_arrays(tmp_path / file, arrays)
    assert not list(tmp_path.iterdir())
    npz = tmp_path / "p.npz"
    write_arrays(npz, arrays)
    with np.load(npz) as stored:
        assert [stored[name][0] for name in names] == list(range(len(names)))


def test_names_that_only_look_alike_are_kept_apart(tmp_path: Path) -> None:
    refuse_unwritable(tmp_path / "p.mat", ["U", "u"])
    write_arrays(tmp_path / "p.h5", {"ux": np.ones(2), "u/x": np.zeros(2)})
    with h5py.File(tmp_path / "p.h5") as file:
        assert file["ux"][0] == 1
        assert file["u/x"][0] == 0


@pytest.mark.parametrize("name", ["file", "allow_pickle", "compressed", "u/x"])
def test_any_name_goes_into_an_npz_file(tmp_path: Path, name: str) -> None:
    values = np.arange(6.0).reshape(2, 3)
    write_arrays(tmp_path / "p.npz", {name: values, "other": values + 1})
    assert set(keys(tmp_path / "p.npz")) == {name, "other"}
    with np.load(tmp_path / "p.npz") as stored:
        np.testing.assert_array_equal(stored[name], values)
