from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ono.data.benchmarks import BENCHMARKS
from ono.data.check import check
from ono.data.generate import make
from ono.physics.c_mesh import shape_parameters


@pytest.mark.parametrize(
    ("size", "shape", "samples"), [("quick", (57, 13), 200), ("full", (221, 51), 1300)]
)
def test_airfoil_sizes(size: str, shape: tuple[int, int], samples: int) -> None:
    plan = BENCHMARKS["airfoil"].plan(size, None, 3)
    assert plan.info.mesh.shape == shape
    assert plan.info.samples == samples
    assert plan.filled["coords"].shape == (shape[0] * shape[1], 2)
    np.testing.assert_array_equal(plan.draw(5, 1)["draws"], shape_parameters(3, 5, 1))


def test_quick_airfoil_is_a_coarser_problem() -> None:
    note = BENCHMARKS["airfoil"].plan("quick", None, 0).info.provenance.note
    assert note.startswith("coarser problem")


def test_airfoil_is_made_and_sound(tmp_path: Path) -> None:
    dataset = make(BENCHMARKS["airfoil"], tmp_path / "a", size="quick", samples=3, batch=2)
    assert [finding for finding in check(dataset) if finding.severity == "fatal"] == []
    assert dataset.info.report is not None
    assert max(dataset.info.report.residual) <= 2.1e-4
    assert dataset.coords.shape == (3, 57 * 13, 2)
    assert dataset.inputs.shape == (3, 57 * 13, 0)
    names = [channel.name for channel in dataset.info.outputs]
    assert names == ["density", "velocity x", "velocity y", "pressure", "Mach number"]
    rho, x, y, p, mach = np.moveaxis(np.asarray(dataset.outputs), -1, 0)
    np.testing.assert_allclose(mach, np.hypot(x, y) / np.sqrt(1.4 * p / rho), rtol=1e-5)
    mesh = dataset.coords.reshape(3, 57, 13, 2)
    np.testing.assert_allclose(mesh[:, 0, -1], [[40, 40]] * 3, rtol=1e-6)  # i slowest, then j
    np.testing.assert_allclose(mesh[:, -1, -1], [[40, -40]] * 3, rtol=1e-6)
    assert (dataset.arrays["draws"][:, 0] == 0).all()
    one = make(BENCHMARKS["airfoil"], tmp_path / "b", size="quick", samples=3, batch=3)
    assert one.info.files["draws"].sha256 == dataset.info.files["draws"].sha256
    np.testing.assert_allclose(one.outputs, dataset.outputs, atol=1e-4)
