from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from ono.data.benchmarks import BENCHMARKS
from ono.data.check import check
from ono.data.info import Array
from ono.data.official import files, read_official
from ono.data.official.rows import PUBLISHED, choose
from ono.data.store import Dataset
from ono.errors import DataError, InputError

Save = Callable[[Path, dict[str, Array]], None]


def save_v5(path: Path, arrays: dict[str, Array]) -> None:
    savemat(path, arrays)


def save_v73(path: Path, arrays: dict[str, Array]) -> None:
    """Write as MATLAB 7.3 does: behind its header, axes reversed."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array.T).attrs["MATLAB_class"] = np.bytes_("single")
    with path.open("r+b") as block:
        block.write(b"MATLAB 7.3 MAT-file, HDF5 schema 1.00".ljust(124) + b"\x00\x02IM")


formats = pytest.mark.parametrize("save", [save_v5, save_v73])


def random(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).random(shape, np.float32)


def darcy(folder: Path, save: Save = save_v5) -> list[dict[str, Array]]:
    parts: list[dict[str, Array]] = []
    for number in (1, 2):
        coeff = np.where(random(3, 421, 421) + number / 4 > 0.8, 12, 3).astype(np.float32)
        sol = 0.02 * random(3, 421, 421) * number / 2
        parts.append({"coeff": coeff, "sol": sol})
        save(folder / f"piececonst_r421_N1024_smooth{number}.mat", parts[-1])
    return parts


def ns2d(folder: Path, save: Save = save_v5) -> dict[str, Array]:
    u, a = random(12, 64, 64, 20) - 0.5, random(12, 64, 64)
    content = {"u": u, "a": a, "t": np.arange(1, 21, dtype=np.float32)[None]}
    save(folder / "NavierStokes_V1e-5_N1200_T20.mat", content)
    return content


def structured(folder: Path, stem: str, shape: tuple[int, int], channels: int) -> dict[str, Array]:
    content = {"X": random(12, *shape), "Y": random(12, *shape) - 0.5}
    content["Q"] = random(12, channels, *shape) + 0.01
    for name, array in content.items():
        np.save(folder / f"{stem}_{name}.npy", array.astype(np.float64))
    return content


def elasticity(folder: Path) -> dict[str, Array]:
    content = {"XY": random(972, 2, 12), "sigma": 500 * random(972, 12), "theta": random(12, 10)}
    for name, array in content.items():
        np.save(folder / f"Random_UnitCell_{name}_10.npy", array.astype(np.float64))
    return content


def plasticity(
    folder: Path, save: Save = save_v5, name: str = "plas_N987_T20.mat"
) -> dict[str, Array]:
    die = 15 + random(12, 101)
    u = 2 * random(12, 101, 31, 20, 2)
    i, j = np.meshgrid(np.arange(101), np.arange(31), indexing="ij")
    grid = np.stack((0.35 - 0.5 * i, 14.9 - 0.5 * j), -1)[:, :, None]
    content = {"input": die, "output": np.concatenate((grid + u, u), -1).astype(np.float32)}
    save(folder / name, content)
    return content


def write(benchmark: str, folder: Path) -> None:
    """Write the files of a benchmark with a few samples."""
    if benchmark == "airfoil":
        structured(folder, "NACA_Cylinder", (221, 51), 5)
        np.save(folder / "NACA_theta.npy", random(12, 8))
    elif benchmark == "pipe":
        structured(folder, "Pipe", (129, 129), 3)
    elif benchmark == "darcy":
        darcy(folder)
    elif benchmark == "ns2d":
        ns2d(folder)
    elif benchmark == "elasticity":
        elasticity(folder)
    else:
        plasticity(folder)


@formats
def test_darcy_takes_train_from_one_file_and_test_from_the_other(
    tmp_path: Path, save: Save
) -> None:
    first, second = darcy(tmp_path, save)
    seen: list[tuple[int, int]] = []
    dataset = read_official(
        "darcy", tmp_path, tmp_path / "out", progress=lambda *at: seen.append(at)
    )
    # Of 3 + 3: train 2 and 1 to spare, test 1 and 2 to spare; validation is as large as test.
    assert dataset.info.splits == {"train": (0, 2), "validation": (2, 3), "test": (3, 4)}
    assert dataset.info.provenance.settings["test samples"] == "3:4"
    for name, key in (("inputs", "coeff"), ("outputs", "sol")):
        expected = np.stack([*first[key][:3], second[key][0]]).reshape(4, -1, 1)
        np.testing.assert_array_equal(dataset.arrays[name], expected)  # type: ignore[index]
    assert seen[0] == (0, 4)
    assert seen[-1] == (4, 4)


@formats
def test_ns2d_keeps_time_and_the_first_field(tmp_path: Path, save: Save) -> None:
    content = ns2d(tmp_path, save)
    dataset = read_official("ns2d", tmp_path, tmp_path / "out")
    assert dataset.info.splits == {"train": (0, 9), "validation": (9, 10), "test": (10, 12)}
    assert dataset.inputs.shape == (12, 4096, 0)
    frames = dataset.outputs.reshape(12, 20, 64, 64)
    np.testing.assert_array_equal(frames[3, 7], content["u"][3, :, :, 7])
    np.testing.assert_array_equal(frames[11, 19], content["u"][11, :, :, 19])
    first = dataset.arrays["draws"].reshape(12, 64, 64)
    np.testing.assert_array_equal(first, content["a"])


def test_airfoil_rows_and_channels(tmp_path: Path) -> None:
    content = structured(tmp_path, "NACA_Cylinder", (221, 51), 5)
    dataset = read_official("airfoil", tmp_path, tmp_path / "out", validation=3)
    order = [0, 1, 2, 3, 4, 6, 7, 8, 5]  # train, the first unused ones, test
    q = content["Q"][order]
    outputs = dataset.outputs.reshape(9, 221, 51, 5)
    for channel, name in enumerate(
        ("density", "velocity x", "velocity y", "pressure", "Mach number")
    ):
        assert dataset.info.outputs[channel].name == name
        np.testing.assert_array_equal(outputs[..., channel], q[:, channel])
    coords = dataset.coords.reshape(9, 221, 51, 2)
    np.testing.assert_array_equal(coords[..., 0], content["X"][order])
    np.testing.assert_array_equal(coords[..., 1], content["Y"][order])
    assert "draws" not in dataset.arrays


def test_pipe_pressure_is_filled_in(tmp_path: Path) -> None:
    content = structured(tmp_path, "Pipe", (129, 129), 3)
    i, j = np.meshgrid(np.arange(129), np.arange(129), indexing="ij")
    plane = 1 + 0.01 * i + 0.002 * j  # linear, so that interpolation must give it back
    content["Q"][:, 2] = np.where((i % 2 == 0) & (j % 2 == 0), plane, 0)
    np.save(tmp_path / "Pipe_Q.npy", content["Q"])
    dataset = read_official("pipe", tmp_path, tmp_path / "out")
    pressure = dataset.outputs.reshape(-1, 129, 129, 3)[..., 2]
    np.testing.assert_allclose(pressure, np.broadcast_to(plane, pressure.shape), rtol=1e-6)


def test_elasticity_is_found_in_its_subdirectory(tmp_path: Path) -> None:
    folder = tmp_path / "elasticity" / "Meshes"
    folder.mkdir(parents=True)
    content = elasticity(folder)
    dataset = read_official("elasticity", tmp_path, tmp_path / "out")
    assert dataset.info.splits == {"train": (0, 6), "validation": (6, 7), "test": (7, 8)}
    order = [0, 1, 2, 3, 4, 5, 10, 11]
    np.testing.assert_array_equal(dataset.coords, np.moveaxis(content["XY"], -1, 0)[order])
    np.testing.assert_array_equal(dataset.outputs[..., 0], content["sigma"].T[order])
    np.testing.assert_array_equal(dataset.arrays["draws"], content["theta"][order])


@formats
@pytest.mark.parametrize("name", ["plas_N987_T20.mat", "buri_plas_N987_time.mat"])
def test_plasticity_pairs_die_and_nodes_by_x(tmp_path: Path, save: Save, name: str) -> None:
    content = plasticity(tmp_path, save, name)
    dataset = read_official("plasticity", tmp_path, tmp_path / "out")
    die = dataset.inputs.reshape(-1, 101, 31)
    order = dataset.info.provenance.settings["test samples"]
    assert order == "11:12"
    np.testing.assert_array_equal(die[-1, :, 4], content["input"][11, ::-1])
    np.testing.assert_array_equal(dataset.arrays["draws"][-1], content["input"][11])
    outputs = dataset.outputs.reshape(-1, 20, 101, 31, 4)
    np.testing.assert_array_equal(outputs[-1, 6], content["output"][11, :, :, 6])
    coords = dataset.coords.reshape(101, 31, 2)
    np.testing.assert_allclose(coords[100, 30], [-49.65, -0.1], atol=1e-6)
    assert dataset.times is not None
    np.testing.assert_allclose(dataset.times[[0, 19]], [0, 1.9], atol=1e-7)
    assert "undeformed" not in dataset.info.provenance.note


def test_the_released_pairing_is_an_option_and_recorded(tmp_path: Path) -> None:
    content = plasticity(tmp_path)
    dataset = read_official("plasticity", tmp_path, tmp_path / "out", pairing="released")
    np.testing.assert_array_equal(dataset.inputs.reshape(-1, 101, 31)[0, :, 0], content["input"][0])
    assert dataset.info.provenance.settings["pairing"] == "released"
    with pytest.raises(InputError, match="pairing 'released' is for plasticity"):
        read_official("pipe", tmp_path, tmp_path / "other", pairing="released")


@pytest.mark.parametrize("benchmark", list(files.FILES))
def test_the_store_is_the_one_the_maker_fills(tmp_path: Path, benchmark: str) -> None:
    write(benchmark, tmp_path)
    dataset = read_official(benchmark, tmp_path, tmp_path / "out")
    plan = BENCHMARKS[benchmark].plan("full", None, 0)
    assert dataset.info.task == plan.info.task
    assert dataset.info.mesh == plan.info.mesh
    assert dataset.info.inputs == plan.info.inputs
    assert dataset.info.outputs == plan.info.outputs
    missing = {"draws"} if benchmark == "pipe" else set()  # its numbers were not published
    assert set(dataset.arrays) | missing == {*plan.fixed, *plan.filled}
    for name, form in plan.filled.items():
        if name in missing:
            continue
        assert dataset.arrays[name].shape[1:] == form.shape, name
        assert dataset.arrays[name].dtype.str == form.dtype, name
    for name, array in plan.fixed.items():
        if name != "inputs":
            np.testing.assert_allclose(dataset.arrays[name], array, rtol=1e-6, atol=1e-6)
    # Random values stand in for fields: only defects of the layout would be fatal.
    assert [str(f) for f in check(dataset) if f.severity == "fatal"] == []


@pytest.mark.parametrize(
    ("benchmark", "words"),
    [
        ("darcy", ("0:1000", "1000:1024 1224:1400", "1024:1224")),
        ("ns2d", ("0:900", "900:1000", "1000:1200")),
        ("airfoil", ("0:1000", "1200:1400", "1000:1200")),
        ("pipe", ("0:1000", "1200:1400", "1000:1200")),
        ("elasticity", ("0:1000", "1600:1800", "1800:2000")),
        ("plasticity", ("0:900", "900:907", "907:987")),
    ],
)
def test_full_files_are_split_as_published(benchmark: str, words: tuple[str, str, str]) -> None:
    counts = [sum(published.values()) for published in PUBLISHED[benchmark]]
    choice = choose(benchmark, counts, None)
    assert tuple(choice.words().values()) == words
    whole = choose(benchmark, counts, 0)
    assert set(whole.splits) == {"train", "test"}
    rows = [i for part in choice.ranges(64) for i in part]
    assert len(set(rows)) == len(rows) == max(stop for _, stop in choice.splits.values())


def test_more_validation_than_unused_samples_comes_out_of_train() -> None:
    choice = choose("plasticity", [987], 80)
    assert tuple(choice.words().values()) == ("0:827", "827:907", "907:987")
    with pytest.raises(InputError, match="validation must be from 0 to 906"):
        choose("plasticity", [987], 907)
    with pytest.raises(DataError, match="2 samples; 3 are the least"):
        choose("plasticity", [2], None)


def test_a_file_with_fewer_samples_is_named(tmp_path: Path) -> None:
    darcy(tmp_path)
    warnings: list[str] = []
    read_official("darcy", tmp_path, tmp_path / "out", warnings=warnings)
    assert len(warnings) == 2
    for k, warning in enumerate(warnings, 1):
        assert warning.startswith(f"piececonst_r421_N1024_smooth{k}.mat: ")
        assert "samples where 1024 were published" in warning


def test_fewer_samples_and_unknown_hashes_are_noted(tmp_path: Path) -> None:
    elasticity(tmp_path)
    warnings: list[str] = []
    dataset = read_official("elasticity", tmp_path, tmp_path / "out", warnings=warnings)
    assert len(warnings) == 4
    for warning in warnings:
        assert warning in dataset.info.provenance.note
    assert sum("git blob SHA-1" in warning for warning in warnings) == 3
    assert ": 12 samples where 2000 were published" in warnings[-1]


def test_known_hashes_do_not_warn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"hello\n")
    # What `echo hello | git hash-object --stdin` and `sha256sum` print.
    blob = "ce013625030ba8dba906f756967f9e9ca394464a"
    digest = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
    known = {"both": files.Known(("a",), sha256=digest, git_blob=blob)}
    monkeypatch.setitem(files.FILES, "hello", known)
    assert files.hashes("hello", {"both": path}) == ({"a": digest}, [])
    path.write_bytes(b"hello")
    assert len(files.hashes("hello", {"both": path})[1]) == 2


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    structured(tmp_path, "Pipe", (129, 129), 3)
    (tmp_path / "Pipe_Q.npy").unlink()
    with pytest.raises(DataError, match=r"not the published pipe: Pipe_Q.npy missing, Pipe_X"):
        read_official("pipe", tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match=r"plas_N987_T20.mat or buri_plas_N987_time.mat missing"):
        read_official("plasticity", tmp_path, tmp_path / "out")
    with pytest.raises(InputError, match=r"did you mean pipe\?"):
        read_official("pip", tmp_path, tmp_path / "out")
    with pytest.raises(InputError, match="no directory"):
        read_official("pipe", tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_grid_or_axis_order_is_an_error(tmp_path: Path) -> None:
    structured(tmp_path, "Pipe", (129, 128), 3)
    with pytest.raises(DataError, match=r"Pipe_X.npy holds \[12, 129, 128\], expected.*129, 129"):
        read_official("pipe", tmp_path, tmp_path / "out")
    content = structured(tmp_path, "Pipe", (129, 129), 3)
    np.save(tmp_path / "Pipe_Q.npy", np.moveaxis(content["Q"], 1, -1))
    with pytest.raises(DataError, match=r"Pipe_Q.npy holds \[12, 129, 129, 3\]"):
        read_official("pipe", tmp_path, tmp_path / "out")
    np.save(tmp_path / "Pipe_Q.npy", content["Q"][:5])
    with pytest.raises(DataError, match=r"do not belong together.*X 12, Y 12, Q 5"):
        read_official("pipe", tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sigma", 3000.0, "sigma of sample 3 runs from .* to 3000, expected 0 to 2000"),
        ("sigma", np.nan, "sigma of sample 3 runs from nan to nan"),
        ("XY", -0.5, "XY of sample 3 runs from -0.5"),
    ],
)
def test_impossible_values_stop_the_reading(
    tmp_path: Path, name: str, value: float, message: str
) -> None:
    content = elasticity(tmp_path)
    content[name][5, ..., 3] = value
    np.save(tmp_path / f"Random_UnitCell_{name}_10.npy", content[name])
    with pytest.raises(DataError, match=message):
        read_official("elasticity", tmp_path, tmp_path / "out")
    left = list((tmp_path / "out").glob("*"))
    assert left == []  # absent, not half-written
    elasticity(tmp_path)
    read_official("elasticity", tmp_path, tmp_path / "out")


def test_permeability_has_two_values(tmp_path: Path) -> None:
    first, _ = darcy(tmp_path)
    first["coeff"][1, 0, 0] = 4
    save_v5(tmp_path / "piececonst_r421_N1024_smooth1.mat", first)
    with pytest.raises(DataError, match=r"coeff holds 4 .*3 or 12"):
        read_official("darcy", tmp_path, tmp_path / "out")


def test_an_occupied_place_is_left_alone(tmp_path: Path) -> None:
    elasticity(tmp_path)
    made = read_official("elasticity", tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match=r"already holds dataset.json"):
        read_official("elasticity", tmp_path, tmp_path / "out")
    assert Dataset.open(tmp_path / "out", verify=True).sha256 == made.sha256
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "coords.npy").touch()
    with pytest.raises(DataError, match=r"not empty, it holds coords.npy"):
        read_official("elasticity", tmp_path, tmp_path / "mine")
    assert (tmp_path / "mine" / "coords.npy").exists()


def test_what_a_killed_reading_left_is_removed(tmp_path: Path) -> None:
    elasticity(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".outputs.npy.4711.tmp").touch()
    read_official("elasticity", tmp_path, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))
