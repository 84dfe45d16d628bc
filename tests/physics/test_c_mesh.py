"""C-mesh: the airfoil against its formulas, the mesh against its stated places and spacings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ono.errors import DataError, ShapeError
from ono.physics.c_mesh import Cells, c_mesh, geometric, morph, profile, shape_parameters
from ono.physics.euler import geometry

QUICK = Cells(13, 30, 12)


def draw(count: int, *, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.stack([shape_parameters(seed, index) for index in range(count)]))


def enclosed(ring: Tensor) -> Tensor:
    """Return the area inside a polygon by the shoelace formula."""
    x, y = ring.unbind(-1)
    return (x * y.roll(-1, 1) - y * x.roll(-1, 1)).sum(1) / 2


def test_profile_is_naca_0012() -> None:
    points = profile(120).numpy()
    assert points.shape == (121, 2)
    assert points[0].tolist() == points[-1].tolist() == [1, 0]
    assert points[60].tolist() == [0, 0]
    side = points[60:]
    expected = np.concatenate(([0, 1 / 236], np.arange(1, 60) / 59))
    np.testing.assert_allclose(side[:, 0], expected, atol=1e-15)
    np.testing.assert_array_equal(points[::-1] * [1, -1], points)
    x = side[:, 0]
    y = 0.2969 * np.sqrt(x) - 0.1260 * x - 0.3516 * x**2 + 0.2843 * x**3 - 0.1036 * x**4
    np.testing.assert_allclose(side[:, 1], -0.6 * y, atol=1e-15)
    assert side[:, 1].min() == pytest.approx(-0.06, abs=2e-4)  # 12 % thick


def test_control_points_move_by_their_own_number() -> None:
    x = (-0.25, 0.25, 0.75, 1.25)
    corners = [(a, -0.1) for a in x] + [(a, 0.1) for a in reversed(x)]
    places = torch.tensor(corners, dtype=torch.float64)
    for i in range(8):
        moved = morph(torch.eye(8, dtype=torch.float64)[i : i + 1], places)[0] - places
        np.testing.assert_allclose(moved[:, 1], np.eye(8)[i], atol=1e-12)
        assert not moved[:, 0].any()


def test_equal_numbers_lift_the_whole_shape() -> None:
    points = profile(30)
    moved = morph(torch.full((1, 8), 0.03, dtype=torch.float64), points)[0]
    np.testing.assert_allclose(moved - points, np.tile([0, 0.03], (31, 1)), atol=1e-14)


def test_geometric_steps_grow_as_stated() -> None:
    steps = np.diff(geometric(50, 1 / 2400).numpy())
    assert steps[0] == pytest.approx(1 / 2400, rel=1e-12)
    ratio = steps[1:] / steps[:-1]
    np.testing.assert_allclose(ratio[:37], 1.02, rtol=1e-9)  # 38 of 51 points, and the step after
    np.testing.assert_allclose(ratio[37:], ratio[37], rtol=1e-9)
    assert 1.5 < ratio[-1] < 1.7
    gentle = np.diff(geometric(50, 0.015).numpy())
    np.testing.assert_allclose(gentle[1:] / gentle[:-1], gentle[1] / gentle[0], rtol=1e-9)
    assert 1 < gentle[1] / gentle[0] < 1.02
    coarse = np.diff(geometric(12, 1 / 2400).numpy())  # two factors would leave a jump of 7
    np.testing.assert_allclose(coarse[1:] / coarse[:-1], coarse[1] / coarse[0], rtol=1e-9)
    assert coarse[1] / coarse[0] < 2


def test_mesh_has_the_published_places() -> None:
    theta = draw(2)
    mesh = c_mesh(theta).numpy()
    assert mesh.shape == (2, 221, 51, 2)
    np.testing.assert_allclose(mesh[:, [0, -1], 0], np.tile([40.0, 0], (2, 2, 1)), atol=1e-12)
    np.testing.assert_allclose(mesh[:, 0, -1], [[40, 40]] * 2, atol=1e-12)
    np.testing.assert_allclose(mesh[:, -1, -1], [[40, -40]] * 2, atol=1e-12)
    airfoil = morph(theta, profile(120)).numpy()
    np.testing.assert_allclose(mesh[:, 50:171, 0], airfoil, atol=1e-14)
    assert np.abs(airfoil[:, 0, 1]).min() > 1e-4  # the trailing edge moved
    np.testing.assert_allclose(mesh[:, :51, 0], mesh[:, :169:-1, 0], atol=1e-14)
    arc = mesh[0, 50:171, -1] - [1, 0]
    np.testing.assert_allclose(np.hypot(*arc.T), 40, rtol=1e-14)
    np.testing.assert_allclose(np.diff(np.unwrap(np.arctan2(*arc.T[::-1]))), math.pi / 120)
    np.testing.assert_allclose(mesh[0, 170:, -1, 0], np.linspace(1, 40, 51), atol=1e-12)


def test_mesh_has_the_published_spacings() -> None:
    mesh = c_mesh(torch.zeros(1, 8))[0].numpy()
    edge = np.linalg.norm(mesh[50, 0] - mesh[51, 0])
    assert np.linalg.norm(mesh[49, 0] - mesh[50, 0]) == pytest.approx(edge, rel=1e-9)
    wall_to_far = np.linalg.norm(mesh[:, -1] - mesh[:, 0], axis=-1)
    first = np.linalg.norm(mesh[:, 1] - mesh[:, 0], axis=-1)
    np.testing.assert_allclose(first / wall_to_far, 1 / 2400, rtol=1e-9)
    np.testing.assert_allclose(mesh[::-1] * [1, -1], mesh, atol=1e-13)


@pytest.mark.parametrize("cells", [Cells(), QUICK])
def test_drawn_meshes_are_not_folded(cells: Cells) -> None:
    mesh = c_mesh(draw(100), cells)
    volume = geometry(mesh, cells.around // 2).volume
    assert volume.min() > 1e-6
    outer, inner = mesh[:, :, -1], mesh[:, cells.wake : cells.wake + cells.around + 1, 0]
    area = enclosed(outer) - enclosed(inner)
    assert torch.allclose(volume.flatten(0, 2).sum(0), area, rtol=1e-12)


def test_every_second_node_is_a_c_mesh() -> None:
    assert Cells().can_be_halved
    assert not QUICK.can_be_halved
    mesh = c_mesh(draw(1))[:, ::2, ::2]
    assert mesh.shape[1:3] == Cells(25, 60, 25).nodes
    assert geometry(mesh, 30).volume.min() > 0


def test_draws_follow_seed_index_and_attempt() -> None:
    theta = shape_parameters(1, 2, 3)
    assert theta.dtype == np.float64
    assert theta[0] == 0
    assert shape_parameters(1, 2, 3).tobytes() == theta.tobytes()
    for other in ((0, 2, 3), (1, 3, 3), (1, 2, 0), (2, 1, 3)):
        assert (shape_parameters(*other)[1:] != theta[1:]).all()


def test_draws_are_uniform() -> None:
    drawn = draw(1000)[:, 1:]
    assert drawn.abs().max() <= 0.05
    assert float(drawn.std()) == pytest.approx(0.1 / math.sqrt(12), rel=0.03)
    assert float(drawn.mean()) == pytest.approx(0, abs=0.0014)


def test_bad_input_is_refused() -> None:
    theta = torch.zeros(3, 8)
    theta[1, 4] = math.nan
    with pytest.raises(DataError, match=r"finite; 1 of 3 .* batch index 1"):
        c_mesh(theta)
    with pytest.raises(ShapeError, match=r"\(batch, 8\), got \(2, 7\)"):
        c_mesh(torch.zeros(2, 7))
    with pytest.raises(ShapeError, match="even number"):
        Cells(50, 121, 50)
