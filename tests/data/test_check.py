from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ono.data.check import Finding, check
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
    arrays["inputs"][8] = arrays["inputs"][0]
    arrays["inputs"][9] = arrays["inputs"][7]
    first, second, note = check(build(tmp_path / "b", arrays))
    assert (first.severity, first.where, first.indices) == ("fatal", "splits train and test", (8,))
    assert (second.where, second.indices) == ("splits validation and test", (9,))
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
    found = check(build(tmp_path, arrays | {"inputs": inputs, "coords": np.ones((POINTS, 2))}))
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


@pytest.mark.parametrize("weight", [-1.0, 0.0])
def test_weights_that_are_no_measure_are_fatal(
    tmp_path: Path, arrays: dict[ArrayName, Array], weight: float
) -> None:
    weights: dict[ArrayName, Array] = {"weights": np.full(POINTS, weight, np.float32)}
    finding = only(check(build(tmp_path, arrays | weights)))
    assert (finding.severity, finding.where) == ("fatal", "weights")
