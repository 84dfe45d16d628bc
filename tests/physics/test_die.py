"""The die: its law, and the surface through its points."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline

from ono.errors import DataError, ShapeError
from ono.physics.die import LEFT, RIGHT, TOP, Surface, X, die_heights


def surface(count: int = 5) -> Surface:
    heights = torch.from_numpy(np.stack([die_heights(0, index) for index in range(count)]))
    return Surface.through(heights, heights)


def test_a_die_touches_the_block_and_keeps_its_ends() -> None:
    x = torch.linspace(LEFT, RIGHT, 5001, dtype=torch.float64)[:, None].expand(-1, 5)
    height, _ = surface().profile(x)
    assert height[[0, -1]].numpy() == pytest.approx(7.5, abs=1e-12)
    assert float(height.amin(0).abs().max()) <= 1e-3
    assert float(height.max()) > 7.5


def test_a_die_is_a_cubic_between_nine_knots() -> None:
    heights = die_heights(3, 4)
    assert heights.dtype == np.float64
    spline = CubicSpline(X[::1], heights, bc_type="natural")
    knots = LEFT + 50 * np.arange(9) / 8
    coarse = CubicSpline(knots, spline(knots), bc_type="natural")
    assert np.abs(coarse(X) - heights).max() <= 2e-3
    fewer = LEFT + 50 * np.arange(8) / 7
    assert np.abs(CubicSpline(fewer, spline(fewer), bc_type="natural")(X) - heights).max() > 0.1


def test_dies_vary_over_the_whole_range() -> None:
    middle = np.array([die_heights(0, index)[50] for index in range(400)]) - TOP
    assert middle.min() < 0.5
    assert middle.max() > 6.5
    assert 2.8 < middle.mean() < 4.2


def test_draws_follow_seed_index_and_attempt() -> None:
    heights = die_heights(1, 2, 3)
    assert die_heights(1, 2, 3).tobytes() == heights.tobytes()
    for other in ((0, 2, 3), (1, 3, 3), (1, 2, 0), (2, 1, 3)):
        assert np.abs(die_heights(*other) - heights).max() > 0.5


def test_surface_goes_through_the_points_and_knows_its_slope() -> None:
    made = surface(2)
    x = torch.from_numpy(X)[:, None].expand(-1, 2).contiguous()
    height, _ = made.profile(x)
    for sample in range(2):
        assert np.abs(height[:, sample].numpy() + TOP - die_heights(0, sample)).max() <= 1e-12
    inside, step = x[:-1] + 0.123, 1e-5
    slope = made.profile(inside)[1]
    difference = made.profile(inside + step)[0] - made.profile(inside - step)[0]
    assert torch.allclose(slope, difference / (2 * step), atol=1e-8)


def test_surface_is_flat_beyond_its_ends() -> None:
    x = torch.tensor([[LEFT - 3.0], [RIGHT + 2.0]], dtype=torch.float64)
    height, slope = surface(1).profile(x)
    assert height.numpy() == pytest.approx(7.5, abs=1e-12)
    assert slope.tolist() == [[0.0], [0.0]]


def test_bad_dies_are_refused() -> None:
    heights = torch.zeros(3, 101)
    with pytest.raises(ShapeError, match="needs 101 heights, got 100"):
        Surface.through(heights[:, 1:], heights)
    heights[1, 5] = torch.nan
    with pytest.raises(DataError, match=r"finite; 1 of 3 .* batch index 1"):
        Surface.through(heights, heights)
