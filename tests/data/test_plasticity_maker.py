"""Plasticity data: what is stored, in which order, in which units."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ono.data.benchmarks import BENCHMARKS, Size
from ono.data.check import check
from ono.data.generate import make

CHOSEN = BENCHMARKS["plasticity"]
SMALL = replace(
    CHOSEN,
    sizes={
        "small": Size(
            {"train": 1, "validation": 1, "test": 1}, "for tests", {"nodes_x": 11, "nodes_y": 4}
        )
    },
)


@pytest.mark.parametrize(
    ("size", "shape", "splits"),
    [
        ("quick", (26, 9), [(0, 80), (80, 90), (90, 100)]),
        ("full", (101, 31), [(0, 900), (900, 907), (907, 987)]),
    ],
)
def test_sizes(size: str, shape: tuple[int, int], splits: list[tuple[int, int]]) -> None:
    plan = CHOSEN.plan(size, None, 0)
    assert plan.info.mesh.shape == shape
    assert list(plan.info.splits.values()) == splits
    coords = plan.fixed["coords"].reshape(*shape, 2)
    np.testing.assert_allclose(coords[0, 0], [0.35, 14.9], atol=1e-6)
    np.testing.assert_allclose(coords[0, -1], [0.35, -0.1], atol=1e-6)
    np.testing.assert_allclose(coords[-1, 0], [-49.65, 14.9], atol=1e-5)
    np.testing.assert_allclose(plan.fixed["times"], 0.1 * np.arange(20), rtol=1e-6)


def test_full_nodes_are_half_a_millimetre_apart() -> None:
    coords = CHOSEN.plan("full", None, 0).fixed["coords"].reshape(101, 31, 2)
    i, j = np.mgrid[:101, :31]
    np.testing.assert_allclose(coords[..., 0], 0.35 - 0.5 * i, atol=1e-5)
    np.testing.assert_allclose(coords[..., 1], 14.9 - 0.5 * j, atol=1e-5)


@pytest.mark.parametrize("size", ["quick", "full"])
def test_a_node_is_told_the_height_of_the_die_above_it(size: str) -> None:
    plan = CHOSEN.plan(size, None, 0)
    assert plan.info.mesh.shape is not None
    drawn = plan.draw(5, 0)
    assert drawn["draws"].shape == (101,)
    file_x = -49.65 + 0.5 * np.arange(101)
    inputs = drawn["inputs"].reshape(plan.info.mesh.shape)
    x = plan.fixed["coords"].reshape(*plan.info.mesh.shape, 2)[..., 0]
    np.testing.assert_allclose(inputs, np.interp(x, file_x, drawn["draws"]), atol=1e-4)
    assert np.abs(inputs - inputs[::-1]).max() > 1, "a mirrored die would be noticed"


def test_plasticity_is_made_and_sound(tmp_path: Path) -> None:
    dataset = make(SMALL, tmp_path / "a", size="small")
    assert [finding for finding in check(dataset) if finding.severity == "fatal"] == []
    assert dataset.info.task == "timed"
    assert dataset.outputs.shape == (3, 20, 44, 4)
    assert dataset.arrays["draws"].dtype == np.float64
    x, u = np.asarray(dataset.outputs[..., :2]), np.asarray(dataset.outputs[..., 2:])
    np.testing.assert_allclose(x - u, np.broadcast_to(dataset.coords, x.shape), atol=1e-5)
    assert (u[:, 0] == 0).all()
    grid = u.reshape(3, 20, 11, 4, 2)
    assert (grid[..., -1, 1] == 0).all()
    # The surface follows the die: no node of the top is above it, travel 0.3 mm a frame.
    height = dataset.inputs.reshape(3, 11, 4)[..., 0]
    assert (grid[:, -1, :, 0, 1].min(1) < -3).all()
    lowest = dataset.coords.reshape(11, 4, 2)[np.argmin(height, 1), 0, 0]
    deepest = dataset.coords.reshape(11, 4, 2)[np.argmin(grid[:, -1, :, 0, 1], 1), 0, 0]
    assert np.abs(lowest - deepest).max() <= 5.1, "the die is not mirrored"
