from __future__ import annotations

import json
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from ono.data import store
from ono.data.store import (
    Array,
    ArrayName,
    Channel,
    Dataset,
    Info,
    Mesh,
    Provenance,
    Report,
    write_dataset,
)
from ono.errors import DataError, InputError
from ono.files import sha256


def describe(**changes: Any) -> Info:
    content: dict[str, Any] = {
        "name": "case",
        "task": "steady",
        "mesh": Mesh(kind="structured", dim=2, shape=(3, 4), shared=True),
        "inputs": (Channel(name="a"),),
        "outputs": (Channel(name="u", unit="Pa"), Channel(name="v")),
        "samples": 5,
        "splits": {"train": (0, 3), "validation": (3, 4), "test": (4, 5)},
        "provenance": Provenance(maker="test", settings={"nodes": 3, "rate": 0.5, "on": True}),
    }
    return Info(**content | changes)


def arrays(**changes: Array) -> dict[ArrayName, Array]:
    random = np.random.default_rng(0)
    content: dict[Any, Array] = {
        "coords": random.random((12, 2), np.float32),
        "inputs": random.random((5, 12, 1), np.float32),
        "outputs": random.random((5, 12, 2), np.float32),
    }
    return content | changes


def edit(path: Path, **changes: Any) -> None:
    file = path / "dataset.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    info, content = describe(), arrays()
    written = write_dataset(tmp_path / "d", info, content)
    read = Dataset.open(tmp_path / "d", verify=True)
    assert read.info == written.info
    assert read.info.model_copy(update={"files": {}}) == info
    for name, array in content.items():
        np.testing.assert_array_equal(read.arrays[name], array)
    assert [list(read.rows(s)) for s in ("train", "validation", "test")] == [[0, 1, 2], [3], [4]]
    assert read.params is read.times is read.weights is read.offsets is None


def test_arrays_are_read_only_memory_maps(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, describe(), arrays())
    assert isinstance(dataset.outputs, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        dataset.outputs[0] = 0


def test_any_byte_order_and_layout_is_stored_plain(tmp_path: Path) -> None:
    inputs = np.asfortranarray(arrays()["inputs"].astype(">f8"))
    dataset = write_dataset(tmp_path, describe(), arrays(inputs=inputs))
    assert dataset.info.files["inputs"].dtype == "<f8"
    assert dataset.inputs.flags.c_contiguous
    np.testing.assert_array_equal(dataset.inputs, inputs)


def test_timed_ragged_and_weighted_datasets(tmp_path: Path) -> None:
    ones = np.ones
    cloud = Mesh(kind="cloud", dim=2, shared=False)
    ragged = write_dataset(
        tmp_path / "ragged",
        describe(mesh=cloud, params=(Channel(name="angle"),)),
        {
            "coords": ones((9, 2)),
            "inputs": ones((9, 1)),
            "outputs": ones((9, 2)),
            "params": ones((5, 1)),
            "weights": ones(9),
            "offsets": np.array([0, 2, 3, 5, 8, 9]),
        },
    )
    assert ragged.offsets is not None
    timed = write_dataset(
        tmp_path / "timed",
        describe(task="timed", mesh=Mesh(kind="structured", dim=2, shape=(3, 4), shared=False)),
        {
            "coords": ones((5, 12, 2)),
            "inputs": ones((5, 12, 1)),
            "outputs": ones((5, 7, 12, 2)),
            "times": np.arange(7.0),
            "weights": ones((5, 12)),
        },
    )
    assert timed.times is not None
    assert timed.times.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_identity_follows_the_content_not_the_place(tmp_path: Path) -> None:
    one = write_dataset(tmp_path / "one", describe(), arrays())
    two = write_dataset(tmp_path / "two", describe(), arrays())
    other = write_dataset(tmp_path / "three", describe(), arrays(inputs=np.ones((5, 12, 1))))
    assert one.sha256 == two.sha256 != other.sha256


def test_other_splits_and_names_are_other_data(tmp_path: Path) -> None:
    """Rows that were trained on must not become test rows unnoticed."""
    info = describe()
    splits = {"train": (0, 1), "validation": (1, 2), "test": (2, 5)}
    changed = [
        info,
        info.model_copy(update={"splits": splits}),
        info.model_copy(update={"outputs": (Channel(name="other"), *info.outputs[1:])}),
        info.model_copy(update={"mesh": info.mesh.model_copy(update={"periodic": True})}),
    ]
    made = [write_dataset(tmp_path / str(i), one, arrays()) for i, one in enumerate(changed)]
    assert len({one.sha256 for one in made}) == len(changed)
    renamed = write_dataset(tmp_path / "n", info.model_copy(update={"name": "n"}), arrays())
    assert renamed.sha256 == made[0].sha256


def test_an_existing_dataset_is_kept_unless_told(tmp_path: Path) -> None:
    old = write_dataset(tmp_path, describe(), arrays(weights=np.ones(12)))
    before = old.sha256
    with pytest.raises(DataError, match=r"already holds dataset\.json"):
        write_dataset(tmp_path, describe(), arrays(inputs=np.ones((5, 12, 1))))
    assert Dataset.open(tmp_path, verify=True).sha256 == before
    new = write_dataset(tmp_path, describe(), arrays(inputs=np.ones((5, 12, 1))), overwrite=True)
    assert new.sha256 != before
    assert not (tmp_path / "weights.npy").exists()


def flip_last_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("strict", [True, False])
def test_an_array_that_was_changed_in_place_is_refused(tmp_path: Path, strict: bool) -> None:
    write_dataset(tmp_path, describe(), arrays())
    outputs = np.load(tmp_path / "outputs.npy", mmap_mode="r+")
    outputs[0, 0, 0] += 1
    outputs.flush()
    with pytest.raises(
        DataError, match=r"outputs\.npy was changed .* `ono data check .* --verify`"
    ):
        Dataset.open(tmp_path, strict=strict)


def test_one_changed_byte_in_a_file_of_a_forged_time_is_found(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, describe(), arrays())
    for name in ("inputs", "outputs"):
        file = tmp_path / f"{name}.npy"
        before = file.stat()
        flip_last_byte(file)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    Dataset.open(tmp_path)  # the header is intact
    with pytest.raises(DataError, match=dataset.info.files["outputs"].sha256) as caught:
        Dataset.open(tmp_path, verify=True)
    for name in ("inputs.npy", "outputs.npy"):
        assert name in str(caught.value)
    assert "coords.npy" not in str(caught.value)


def test_data_is_hashed_again_only_where_it_is_newer_than_its_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path, describe(), arrays())
    hashed: list[str] = []

    def count(file: Path) -> str:
        hashed.append(file.name)
        return sha256(file)

    monkeypatch.setattr(store, "sha256", count)
    Dataset.open(tmp_path)
    assert hashed == []
    later = (tmp_path / "dataset.json").stat().st_mtime_ns + 1_000_000_000
    os.utime(tmp_path / "inputs.npy", ns=(later, later))  # as a copy may leave it
    Dataset.open(tmp_path)
    assert hashed == ["inputs.npy"]


@pytest.mark.parametrize("left", [0, 100, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, left: int) -> None:
    write_dataset(tmp_path, describe(), arrays())
    file = tmp_path / "inputs.npy"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(DataError, match=r"inputs\.npy has \d+ bytes, dataset\.json says 368"):
        Dataset.open(tmp_path)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path, describe(), arrays())
    (tmp_path / "coords.npy").unlink()
    with pytest.raises(DataError, match=r"coords\.npy is missing"):
        Dataset.open(tmp_path)


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_another_format_is_refused_by_number(tmp_path: Path, version: object) -> None:
    write_dataset(tmp_path, describe(), arrays())
    edit(tmp_path, format=version, surprise=1)
    with pytest.raises(DataError, match=f"format {version!r}.* reads format 1"):
        Dataset.open(tmp_path)


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickled_objects_are_never_read(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", describe(), arrays())
    canary = tmp_path / "canary"
    file = tmp_path / "d" / "inputs.npy"
    np.save(file, np.array([Canary(canary)], object), allow_pickle=True)
    content = json.loads((tmp_path / "d" / "dataset.json").read_text())["files"]
    content["inputs"] |= {"bytes": file.stat().st_size, "shape": [1], "dtype": "|O"}
    edit(tmp_path / "d", files=content)
    for strict in (True, False):
        with pytest.raises(DataError, match="pickled objects are never read"):
            Dataset.open(tmp_path / "d", strict=strict)
    with pytest.raises(DataError, match=r"inputs has dtype \|O"):
        write_dataset(tmp_path / "e", describe(), arrays(inputs=np.full((5, 12, 1), None)))
    assert not canary.exists()


def test_a_raw_pickle_in_the_place_of_an_array_runs_no_code(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", describe(), arrays())
    canary, file = tmp_path / "canary", tmp_path / "d" / "outputs.npy"
    content = pickle.dumps(Canary(canary)).ljust(dataset.info.files["outputs"].bytes, b"\0")
    before = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    for read in (Dataset.open, partial(Dataset.open, strict=False)):
        with pytest.raises(DataError, match=r"outputs\.npy cannot be used: .* never read"):
            read(tmp_path / "d")
    assert not canary.exists()


def test_what_is_not_a_dataset_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no dataset at .*nowhere"):
        Dataset.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no dataset\.json"):
        Dataset.open(tmp_path)
    (tmp_path / "dataset.json").write_text('{"format": 1, "name": ')
    with pytest.raises(DataError, match=r"dataset\.json cannot be read"):
        Dataset.open(tmp_path)
    (tmp_path / "dataset.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"dataset\.json cannot be read"):
        Dataset.open(tmp_path)
    (tmp_path / "dataset.json").write_text('{"format": 1, "nmae": "x"}')
    with pytest.raises(DataError, match="nmae: Extra inputs"):
        Dataset.open(tmp_path)


def test_an_array_that_does_not_match_its_description_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, describe(), arrays())
    np.save(tmp_path / "inputs.npy", np.ones((12, 5, 1), np.float32))  # as many bytes
    with pytest.raises(DataError, match=r"inputs\.npy holds <f4 \[12, 5, 1\].*says <f4 \[5, 12, 1"):
        Dataset.open(tmp_path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"inputs": np.ones((12, 5, 1))}, r"inputs has shape \[12, 5, 1\], expected \[5, 12, 1\]"),
        ({"outputs": np.ones((5, 12))}, r"outputs has shape \[5, 12\]"),
        ({"coords": np.ones(12)}, r"coords has shape \[12\], expected \[12, 2\]"),
        ({"weights": np.ones((12, 1))}, r"weights has shape .* expected \[12\] or \[5, 12\]"),
        ({"params": np.ones((5, 1))}, "params does not belong here"),
        ({"offsets": np.arange(6)}, "offsets does not belong here"),
        ({"inputs": np.ones((5, 12, 1), complex)}, "inputs has dtype <c16"),
    ],
)
def test_arrays_that_do_not_fit_are_not_stored(
    tmp_path: Path, changes: dict[str, Array], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        write_dataset(tmp_path / "d", describe(), arrays(**changes))
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("offsets", [[0, 2, 2, 5, 8, 9], [1, 2, 3, 5, 8, 9], [0, 2, 3, 5, 8, 10]])
def test_offsets_must_cut_the_points(tmp_path: Path, offsets: list[int]) -> None:
    info = describe(mesh=Mesh(kind="cloud", dim=2, shared=False))
    content = arrays(coords=np.ones((9, 2)), inputs=np.ones((9, 1)), outputs=np.ones((9, 2))) | {
        "offsets": np.array(offsets)
    }
    with pytest.raises(DataError, match="offsets"):
        write_dataset(tmp_path, info, content)


@pytest.mark.parametrize(
    "changes",
    [
        {"splits": {"train": (0, 3), "test": (2, 5)}},
        {"splits": {"train": (0, 3), "test": (3, 6)}},
        {"splits": {"train": (0, 3), "test": (3, 3)}},
        {"splits": {"training": (0, 3)}},
        {"samples": 0, "splits": {}},
        {"outputs": ()},
        {"outputs": (Channel(name="u"), Channel(name="u"))},
        {"report": Report(converged=[True], residual=[0.0], iterations=[1], attempt=[0])},
    ],
)
def test_an_inconsistent_description_is_refused(changes: dict[str, Any]) -> None:
    describe()
    with pytest.raises(ValidationError):
        describe(**changes)


@pytest.mark.parametrize(
    ("kind", "dim", "shape"),
    [("grid", 2, (4,)), ("grid", 2, None), ("cloud", 2, (3, 4)), ("structured", 2, (2, 2, 2))],
)
def test_a_mesh_shape_must_fit(kind: Any, dim: int, shape: tuple[int, ...] | None) -> None:
    with pytest.raises(ValidationError):
        Mesh(kind=kind, dim=dim, shape=shape, shared=True)


def test_an_unknown_split_lists_those_there(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, describe(), arrays())
    with pytest.raises(DataError, match="no split 'trian'; did you mean train"):
        dataset.rows("trian")


def test_a_file_in_the_way_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"cannot write to .*file"):
        write_dataset(tmp_path / "file" / "d", describe(), arrays())
    assert (tmp_path / "file").read_text() == "mine"


def test_geometry_alone_may_decide_the_output(tmp_path: Path) -> None:
    """Inputs without channels are stored, opened and read like any others."""
    rng = np.random.default_rng(0)
    coords = rng.random((6, 9, 2), np.float32)
    info = Info(
        name="geometry",
        task="steady",
        mesh=Mesh(kind="cloud", dim=2, shared=False),
        outputs=(Channel(name="stress"),),
        samples=6,
        splits={"train": (0, 4), "validation": (4, 5), "test": (5, 6)},
        provenance=Provenance(maker="test"),
    )
    arrays: dict[ArrayName, Array] = {
        "coords": coords,
        "inputs": np.zeros((6, 9, 0), np.float32),
        "outputs": coords[..., :1],
        "draws": rng.random((6, 3)),
    }
    dataset = write_dataset(tmp_path / "d", info, arrays)
    dataset.verify()
    assert dataset.inputs.shape == (6, 9, 0)
    np.testing.assert_array_equal(dataset.arrays["draws"], arrays["draws"])
    assert not dataset.inputs.flags.writeable


def test_a_summary_tells_params_and_times_and_no_seed_that_is_none(tmp_path: Path) -> None:
    plain = write_dataset(tmp_path / "plain", describe(), arrays()).summary()
    assert plain["made by"] == "test"
    assert "params" not in plain
    assert "times" not in plain
    info = describe(
        task="timed",
        params=(Channel(name="load", unit="N"),),
        provenance=Provenance(maker="test", size="quick", seed=0),
    )
    moving = arrays(
        outputs=np.zeros((5, 3, 12, 2), np.float32),
        times=np.array([0.5, 1.0, 2.0]),
        params=np.zeros((5, 1)),
    )
    summary = write_dataset(tmp_path / "moving", info, moving).summary()
    assert summary["params"] == "load [N]"
    assert summary["times"] == "3, from 0.5 to 2"
    assert summary["made by"] == "test quick, seed 0"
