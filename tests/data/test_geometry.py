"""Published voids: row i is sample i, nothing else is accepted, nothing is redrawn."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ono.cli.data import app
from ono.data.benchmarks import BENCHMARKS
from ono.data.generate import make
from ono.data.geometry import with_geometry
from ono.data.store import Dataset
from ono.errors import DataError, InputError
from ono.physics import elasticity

THETA = 16 * np.random.default_rng(0).standard_normal((6, 10))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.save(tmp_path / "theta.npy", THETA)
    return tmp_path / "theta.npy"


def test_published_voids_are_solved_in_their_order(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["make", "elasticity", "--geometry", str(file), "--samples", "5", "--device", "cpu"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.exception
    dataset = Dataset.open("data/elasticity-published-quick")
    np.testing.assert_array_equal(dataset.arrays["draws"], THETA[:5])
    assert dataset.outputs.shape == (5, 972, 1)
    source = dataset.info.provenance
    assert source.settings == {"geometry": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert source.note.startswith("published geometry, own solver")
    assert source.seed is None
    assert CliRunner().invoke(app, [*arguments, "--seed", "4"]).stdout.startswith("already made")
    np.save(file, THETA + 1e-9)
    other = CliRunner().invoke(app, arguments)
    assert isinstance(other.exception, DataError)
    assert "choose another directory" in str(other.exception)


def test_full_size_has_the_published_splits(tmp_path: Path) -> None:
    np.save(tmp_path / "theta.npy", np.tile(THETA, (334, 1))[:2000])
    plan = with_geometry(BENCHMARKS["elasticity"], tmp_path / "theta.npy").plan("full", None, 0)
    assert plan.info.splits == {
        "train": (0, 1000),
        "validation": (1000, 1800),
        "test": (1800, 2000),
    }
    np.testing.assert_array_equal(plan.draw(1999, 0)["draws"], THETA[1999 % 6])


def test_a_published_void_is_never_redrawn(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = with_geometry(BENCHMARKS["elasticity"], file)
    with pytest.raises(DataError, match="void 2 was not solved"):
        maker.plan("quick", 3, 0).draw(2, 1)
    monkeypatch.setattr(elasticity, "ACCEPTED", 0.0)
    with pytest.raises(DataError, match="void 0 was not solved"):
        make(maker, tmp_path / "out", size="quick", samples=3)


def test_bad_files_are_refused(file: Path, tmp_path: Path) -> None:
    maker = BENCHMARKS["elasticity"]
    with pytest.raises(InputError, match="7 samples were asked for, the geometry file has 6"):
        with_geometry(maker, file).plan("quick", 7, 0)
    with pytest.raises(InputError, match="elasticity only, not for darcy"):
        with_geometry(BENCHMARKS["darcy"], file)
    with pytest.raises(DataError, match=r"missing\.npy cannot be read"):
        with_geometry(maker, tmp_path / "missing.npy")
    bad = tmp_path / "bad.npy"
    for array, complaint in (
        (THETA.T, r"\[10, 6\]"),
        (THETA[:, 0], r"\[6\]"),
        (THETA.astype(complex), "complex128"),
        (np.where(THETA[3, 2] == THETA, np.nan, THETA), "not finite in 1 rows, the first is 3"),
        (THETA.astype(object), r"not a \.npy file of numbers"),
    ):
        np.save(bad, array)
        with pytest.raises(DataError, match=complaint):
            with_geometry(maker, bad)
    bad.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"not a \.npy file of numbers"):
        with_geometry(maker, bad)


def test_radius_of_a_void_by_hand() -> None:
    theta = torch.zeros(2, 10, dtype=torch.float64)
    theta[0, 2], theta[1, 1] = (
        13 * math.sqrt(math.pi),
        10 * math.sqrt(math.pi),
    )  # cos 2 phi, sin phi
    phi = 2 * math.pi * torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64)
    low, high = 0.2 + 0.2 / (1 + math.e), 0.2 + 0.2 / (1 + 1 / math.e)
    radius = elasticity.void_radius(theta, phi)
    assert radius[0].tolist() == pytest.approx([low, high, low, high], abs=1e-14)
    assert radius[1].tolist() == pytest.approx([0.3, low, 0.3, high], abs=1e-14)
