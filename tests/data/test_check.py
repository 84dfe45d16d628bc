from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ono.data.check import Finding, check
from ono.data.check_mesh import cell_sizes
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
from ono.errors import DataError

SAMPLES, POINTS = 10, 6


def build(path: Path, arrays: dict[ArrayName, Array], **changes: Any) -> Dataset:
    content: dict[str, Any] = {
        "name": "case",
        "task": "steady",
        "mesh": Mesh(kind="cloud", dim=2, shared=True),
        "inputs": (Channel(name="a"), Channel(name="b")),
        "outputs": (Channel(name="u"), Channel(name="v")),
        "samples": SAMPLES,
        "splits": {"train": (0, 6), "validation": (6, 8), "test": (8, 10)},
        "provenance": Provenance(maker="test"),
    }
    return write_dataset(path, Info(**content | changes), arrays)


@pytest.fixture
def arrays() -> dict[ArrayName, Array]:
    random = np.random.default_rng(1)
    return {
        "coords": random.random((POINTS, 2), np.float32),
        "inputs": random.random((SAMPLES, POINTS, 2), np.float32),
        "outputs": random.random((SAMPLES, POINTS, 2), np.float32),
    }


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, [str(finding) for finding in findings]
    return findings[0]


def test_a_sound_dataset_has_no_findings(tmp_path: Path, arrays: dict[ArrayName, Array]) -> None:
    assert check(build(tmp_path, arrays)) == []


@pytest.mark.parametrize("name", ["inputs", "outputs"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(
    tmp_path: Path, arrays: dict[ArrayName, Array], name: ArrayName, value: float
) -> None:
    arrays[name][7, 2, 1] = arrays[name][3, 4, 0] = arrays[name][3, 5, 0] = value
    found = only(check(build(tmp_path, arrays)))
    assert found == Finding("fatal", "3 values are not finite", name, 2, (3, 7))


def test_shared_points_that_are_not_finite(tmp_path: Path, arrays: dict[ArrayName, Array]) -> None:
    arrays["coords"][2] = np.nan
    found = only(check(build(tmp_path, arrays)))
    assert found == Finding("fatal", "2 values are not finite", "coords")


def test_channels_constant_over_the_training_rows(
    tmp_path: Path, arrays: dict[ArrayName, Array]
) -> None:
    arrays["inputs"][:6, :, 1] = 4
    found = only(check(build(tmp_path / "a", arrays)))
    assert (found.severity, found.where) == ("note", "inputs.b")
    arrays["inputs"][5, 5, 1] = 5
    assert check(build(tmp_path / "b", arrays)) == []
    params = np.ones((SAMPLES, 1), np.float32)
    params[6:] = 2
    found = only(
        check(build(tmp_path / "c", arrays | {"params": params}, params=(Channel(name="p"),)))
    )
    assert (found.severity, found.where) == ("note", "params.p")


def test_an_output_channel_without_variance_is_fatal(
    tmp_path: Path, arrays: dict[ArrayName, Array]
) -> None:
    arrays["outputs"][:6, :, 0] = 1.5
    fatal, note = check(build(tmp_path, arrays))
    assert (note.severity, note.where, note.count, note.indices) == (
        "note",
        "outputs.u",
        6,
        (0, 1, 2, 3, 4),
    )
    assert (fatal.severity, fatal.where) == ("fatal", "outputs.u")
    assert "zero variance" in fatal.what


def test_flat_and_zero_outputs(tmp_path: Path, arrays: dict[ArrayName, Array]) -> None:
    arrays["outputs"][2, :, 1] = 3
    arrays["outputs"][[4, 9]] = 0
    fatal, note = check(build(tmp_path, arrays))
    assert (fatal.severity, fatal.where, fatal.indices) == ("fatal", "outputs", (4, 9))
    assert (note.severity, note.where, note.indices) == ("note", "outputs.v", (2,))


def test_twins_within_a_split_are_noted_and_between_splits_are_a_leak(
    tmp_path: Path, arrays: dict[ArrayName, Array]
) -> None:
    arrays["inputs"][4] = arrays["inputs"][1]
    found = only(check(build(tmp_path / "a", arrays)))
    assert (found.severity, found.count, found.indices) == ("note", 1, (4,))
    assert found.like == (1,)
    arrays["inputs"][8] = arrays["inputs"][0]
    arrays["inputs"][9] = arrays["inputs"][7]
    first, second, note = check(build(tmp_path / "b", arrays))
    assert (first.severity, first.where, first.indices) == ("fatal", "splits train and test", (8,))
    assert (second.where, second.indices) == ("splits validation and test", (9,))
    assert (first.like, second.like) == ((0,), (7,))
    assert note.severity == "note"


def test_rows_outside_all_splits_do_not_leak(
    tmp_path: Path, arrays: dict[ArrayName, Array]
) -> None:
    arrays["inputs"][9] = arrays["inputs"][0]
    splits = {"train": (0, 6), "validation": (6, 8), "test": (8, 9)}
    assert check(build(tmp_path, arrays, splits=splits)) == []


def test_params_and_own_meshes_tell_samples_apart(
    tmp_path: Path, arrays: dict[ArrayName, Array]
) -> None:
    arrays["inputs"][8] = arrays["inputs"][0]
    params = np.arange(SAMPLES, dtype=np.float32)[:, None]
    with_params = build(
        tmp_path / "a", arrays | {"params": params}, params=(Channel(name="angle"),)
    )
    assert check(with_params) == []
    coords = np.random.default_rng(2).random((SAMPLES, POINTS, 2), np.float32)
    own = Mesh(kind="cloud", dim=2, shared=False)
    assert check(build(tmp_path / "b", arrays | {"coords": coords}, mesh=own)) == []
    coords[8] = coords[0]
    assert only(check(build(tmp_path / "c", arrays | {"coords": coords}, mesh=own))).count == 1


def test_ragged_samples_are_told_apart(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    offsets = np.concatenate([[0], np.cumsum(random.integers(2, 7, SAMPLES))])
    total = int(offsets[-1])
    arrays: dict[ArrayName, Array] = {
        "coords": random.random((total, 2), np.float32),
        "inputs": random.random((total, 2), np.float32),
        "outputs": random.random((total, 2), np.float32),
        "offsets": offsets,
    }
    ragged = Mesh(kind="cloud", dim=2, shared=False)
    assert check(build(tmp_path / "a", arrays, mesh=ragged)) == []
    arrays["outputs"][offsets[5]] = np.nan
    found = only(check(build(tmp_path / "b", arrays, mesh=ragged)))
    assert (found.where, found.indices) == ("outputs", (5,))


def test_samples_the_solver_gave_up(tmp_path: Path, arrays: dict[ArrayName, Array]) -> None:
    report = Report(
        converged=[i not in (2, 8) for i in range(SAMPLES)],
        residual=[1e-3] * SAMPLES,
        iterations=[9] * SAMPLES,
        attempt=[0] * SAMPLES,
    )
    found = only(check(build(tmp_path, arrays, report=report)))
    assert (found.severity, found.where, found.indices) == ("fatal", "report", (2, 8))


def test_missing_splits(tmp_path: Path, arrays: dict[ArrayName, Array]) -> None:
    found = only(check(build(tmp_path / "a", arrays, splits={"train": (0, 8), "test": (8, 10)})))
    assert (found.severity, found.where) == ("note", "split validation")
    found = check(build(tmp_path / "b", arrays, splits={"validation": (0, 8), "test": (8, 10)}))[0]
    assert (found.severity, found.where) == ("fatal", "split train")


def test_dtypes_that_are_converted_are_noted(
    tmp_path: Path, arrays: dict[ArrayName, Array]
) -> None:
    inputs = np.random.default_rng(0).integers(0, 99, (SAMPLES, POINTS, 2))
    coords = np.arange(2.0 * POINTS).reshape(POINTS, 2)
    found = check(build(tmp_path, arrays | {"inputs": inputs, "coords": coords}))
    assert [(f.severity, f.where) for f in found] == [("note", "coords"), ("note", "inputs")]
    assert "<i8" in found[1].what


def plant(path: Path, name: ArrayName, array: Array) -> None:
    """Replace an array behind the back of `write_dataset`, as an outside tool would."""
    np.save(path / f"{name}.npy", array)
    file = path / "dataset.json"
    content = json.loads(file.read_text())
    content["files"][name] |= {
        "bytes": (path / f"{name}.npy").stat().st_size,
        "shape": array.shape,
        "dtype": array.dtype.str,
    }
    file.write_text(json.dumps(content))


def test_wrong_ranks_and_counts_are_listed(tmp_path: Path, arrays: dict[ArrayName, Array]) -> None:
    build(tmp_path, arrays)
    plant(tmp_path, "inputs", arrays["inputs"].transpose(1, 0, 2).copy())
    plant(tmp_path, "outputs", arrays["outputs"][:7])
    findings = check(Dataset.open(tmp_path, strict=False))
    assert [finding.severity for finding in findings] == ["fatal", "fatal"]
    assert "inputs has shape [6, 10, 2], expected [10, 6, 2]" in findings[0].what
    assert "outputs has shape [7, 6, 2], expected [10, 6, 2]" in findings[1].what


def test_fortran_order_is_noted(tmp_path: Path, arrays: dict[ArrayName, Array]) -> None:
    build(tmp_path, arrays)
    plant(tmp_path, "inputs", np.asfortranarray(arrays["inputs"]))
    found = only(check(Dataset.open(tmp_path)))
    assert (found.severity, found.where) == ("note", "inputs")
    assert "Fortran" in found.what


def test_a_finding_reads_as_a_sentence() -> None:
    found = Finding("fatal", "3 values are not finite", "inputs", 9, (1, 2))
    assert str(found) == "fatal: inputs: 3 values are not finite in 9 samples: 1, 2, ..."
    files = [f"m{k}.vtu" for k in range(9)]
    assert found.told(files).endswith("not finite in 9 files: m1.vtu, m2.vtu, ...")
    leak = Finding("fatal", "a leak", "splits train and test", 1, (8,), (3,))
    assert str(leak).endswith("a leak in 1 samples: 8 like 3")
    assert leak.told(files).endswith("a leak in 1 files: m8.vtu like m3.vtu")
    assert Finding("note", "zero", "inputs").told(files) == "note: inputs: zero"


@pytest.mark.parametrize("weight", [-1.0, 0.0])
def test_weights_that_are_no_measure_are_fatal(
    tmp_path: Path, arrays: dict[ArrayName, Array], weight: float
) -> None:
    weights: dict[ArrayName, Array] = {"weights": np.full(POINTS, weight, np.float32)}
    finding = only(check(build(tmp_path, arrays | weights)))
    assert (finding.severity, finding.where) == ("fatal", "weights")


def on_mesh(mesh: Mesh, coords: Array, outputs: Array) -> tuple[dict[ArrayName, Array], Mesh]:
    random = np.random.default_rng(2)
    inputs = random.random((SAMPLES, outputs.shape[1], 2), np.float32)
    arrays: dict[ArrayName, Array] = {
        "coords": coords.astype(np.float32),
        "inputs": inputs,
        "outputs": outputs.astype(np.float32),
    }
    return arrays, mesh


def waves(x: Array, y: Array) -> Array:
    """Return two smooth channels at points [samples points 2]."""
    phase = np.arange(SAMPLES)[:, None]
    return np.stack([np.sin(3 * x + phase) + y, 100 * np.cos(4 * y + phase) + x], -1)


NX, NY = 12, 30
GRID_X, GRID_Y = np.meshgrid(np.linspace(0, 1, NX), np.linspace(0, 2, NY), indexing="ij")
GRID = np.stack([GRID_X, GRID_Y], -1).reshape(-1, 2)
GRID_MESH = Mesh(kind="grid", dim=2, shape=(NX, NY), shared=True)


def transposed_axes(fields: Array) -> Array:
    return fields.reshape(SAMPLES, NX, NY, 2).transpose(0, 2, 1, 3).reshape(SAMPLES, -1, 2)


def channels_first(fields: Array) -> Array:
    return fields.transpose(0, 2, 1).reshape(SAMPLES, -1, 2)


@pytest.mark.parametrize(
    ("order", "evidence"),
    [
        (transposed_axes, "with the grid axes reversed"),
        (channels_first, "with channels before points"),
    ],
)
def test_a_transposed_layout_is_noted_with_evidence(
    tmp_path: Path, order: Callable[[Array], Array], evidence: str
) -> None:
    fields = waves(*GRID.T)
    arrays, mesh = on_mesh(GRID_MESH, GRID, fields)
    assert check(build(tmp_path / "right", arrays, mesh=mesh)) == []
    arrays["outputs"] = order(fields).astype(np.float32)
    found = only(check(build(tmp_path / "wrong", arrays, mesh=mesh)))
    assert (found.severity, found.where) == ("note", "outputs")
    assert evidence in found.what


def test_values_in_another_order_than_the_points_are_noted(tmp_path: Path) -> None:
    points = np.random.default_rng(0).random((200, 2))
    points = points[np.argsort(points[:, 0])]
    smooth = waves(points[:, 0], points[:, 0])
    cloud = Mesh(kind="cloud", dim=2, shared=True)
    arrays, _ = on_mesh(cloud, points, smooth)
    assert check(build(tmp_path / "right", arrays)) == []
    order = np.random.default_rng(1).permutation(200)
    arrays["coords"] = arrays["coords"][order]
    found = only(check(build(tmp_path / "wrong", arrays)))
    assert (found.severity, found.where) == ("note", "outputs")
    assert "are both in one order?" in found.what


def test_meshes_without_extent(tmp_path: Path, arrays: dict[ArrayName, Array]) -> None:
    arrays["coords"][:] = 3
    found = only(check(build(tmp_path / "point", arrays)))
    assert (found.severity, found.what) == ("fatal", "all points coincide")
    flat = GRID * [1, 0]
    structured = Mesh(kind="structured", dim=2, shape=(NX, NY), shared=True)
    on_line, _ = on_mesh(structured, flat, waves(*GRID.T))
    found = only(check(build(tmp_path / "line", on_line, mesh=structured)))
    assert (found.severity, found.what) == ("fatal", "cells: all are empty")


def test_cells_that_are_empty_or_folded(tmp_path: Path) -> None:
    mesh = Mesh(kind="structured", dim=2, shape=(NX, NY), shared=False)
    coords = np.repeat(GRID[None], SAMPLES, 0) * (1 + np.arange(SAMPLES)[:, None, None])
    nodes = coords.reshape(SAMPLES, NX, NY, 2)
    nodes[4, :, 1] = nodes[4, :, 0]
    nodes[7, 5, 5] = nodes[7, 8, 8]
    arrays, _ = on_mesh(mesh, coords, waves(*GRID.T))
    empty, folded = check(build(tmp_path, arrays, mesh=mesh))
    assert (empty.severity, empty.indices) == ("note", (4,))
    assert empty.what == f"{NX - 1} cells are empty"
    assert (folded.severity, folded.indices) == ("note", (7,))
    assert "folded over" in folded.what


def test_the_cut_of_a_ring_is_no_defect(tmp_path: Path) -> None:
    angle = 2 * np.pi * GRID_Y / 2
    ring = np.stack([(1 + GRID_X) * np.cos(angle), (1 + GRID_X) * np.sin(angle)], -1)
    mesh = Mesh(kind="structured", dim=2, shape=(NX, NY), shared=True)
    arrays, _ = on_mesh(mesh, ring.reshape(-1, 2), waves(*ring.reshape(-1, 2).T))
    assert check(build(tmp_path, arrays, mesh=mesh)) == []


def test_points_of_a_cloud_that_coincide(tmp_path: Path, arrays: dict[ArrayName, Array]) -> None:
    cloud = Mesh(kind="cloud", dim=2, shared=False)
    arrays["coords"] = np.random.default_rng(0).random((SAMPLES, POINTS, 2), np.float32)
    arrays["coords"][3, 4] = arrays["coords"][3, 1]
    arrays["coords"][8, [2, 3]] = arrays["coords"][8, 0]
    found = only(check(build(tmp_path, arrays, mesh=cloud)))
    assert found == Finding("note", "3 points coincide with another", "coords", 2, (3, 8))


@pytest.mark.parametrize(
    ("nodes", "sizes"),
    [
        (np.array([[0.0], [1.0], [3.0]]), [1, 2]),
        (np.array([[0.0, 0], [3, 4], [3, 5]]), [5, 1]),
        (np.stack(np.meshgrid([0, 1], [0, 2], [0, 3, 4.0], indexing="ij"), -1), [6, 2]),
        (np.stack(np.meshgrid([0, 1], [0, 2], [5.0], indexing="ij"), -1)[:, :, 0], [2]),
    ],
)
def test_sizes_of_structured_cells(nodes: Array, sizes: list[float]) -> None:
    assert cell_sizes(nodes).ravel() == pytest.approx(sizes)


def test_times_that_do_not_increase(tmp_path: Path, arrays: dict[ArrayName, Array]) -> None:
    frames = np.random.default_rng(0).random((SAMPLES, 3, POINTS, 2), np.float32)
    for times, fatal in (([0, 1, 2], False), ([0, 1, 1], True)):
        extra: dict[ArrayName, Array] = {"outputs": frames, "times": np.array(times, np.float32)}
        moving = arrays | extra
        found = check(build(tmp_path / str(fatal), moving, task="timed"))
        assert [f.where for f in found] == (["times"] if fatal else [])


def test_a_pickled_array_is_refused_and_not_run(
    tmp_path: Path, arrays: dict[ArrayName, Array]
) -> None:
    build(tmp_path, arrays)
    np.save(tmp_path / "inputs.npy", np.array([[{}]] * 99, object), allow_pickle=True)
    info = json.loads((tmp_path / "dataset.json").read_text())
    info["files"]["inputs"]["bytes"] = (tmp_path / "inputs.npy").stat().st_size
    (tmp_path / "dataset.json").write_text(json.dumps(info))
    with pytest.raises(DataError, match="pickled objects are never read") as error:
        Dataset.open(tmp_path, strict=False)
    assert error.value.exit_code == 2
