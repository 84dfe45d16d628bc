"""Pipe: the geometry, the flow against what is known of it, the solver's word."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ono.errors import DataError, ShapeError
from ono.physics import pipe, taylor_hood

CPU = torch.device("cpu")


def draw(count: int, *, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.stack([pipe.centre_numbers(seed, i) for i in range(count)]))


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def flux(solution: pipe.Solution) -> Tensor:
    """Return the flow through each vertical line of nodes, exact for parabolas (Simpson)."""
    nodes = solution.velocity.shape[1]
    weight = torch.full((nodes,), 2.0, dtype=torch.float64)
    weight[1::2], weight[0], weight[-1] = 4, 1, 1
    return solution.velocity[..., 0] @ weight / (3 * (nodes - 1))


def test_centre_line_passes_its_offsets_with_its_slopes() -> None:
    numbers = draw(3)
    x = torch.linspace(0, 10, 5, dtype=torch.float64)
    zero = torch.zeros(3, 1, dtype=torch.float64)
    offsets = torch.cat((zero, numbers[:, :4]), 1)
    assert torch.allclose(pipe.centre_line(numbers, x), offsets, atol=1e-15)
    step = 1e-5
    for side in (-step, step):
        inner = x[(x + side >= 0) & (x + side <= 10)]
        rise = pipe.centre_line(numbers, inner + side) - pipe.centre_line(numbers, inner)
        slopes = numbers[:, 4:][:, (x + side >= 0) & (x + side <= 10)]
        assert torch.allclose(rise / side, slopes / 2.5, atol=1e-4)


def test_draws_follow_seed_index_and_attempt() -> None:
    numbers = pipe.centre_numbers(1, 2, 3)
    assert numbers.dtype == np.float64
    assert pipe.centre_numbers(1, 2, 3).tobytes() == numbers.tobytes()
    for other in ((0, 2, 3), (1, 3, 3), (1, 2, 0), (2, 1, 3)):
        assert not (pipe.centre_numbers(*other) == numbers).any()


def test_draws_fill_their_ranges() -> None:
    drawn = np.stack([pipe.centre_numbers(0, i) for i in range(500)])
    for part, bound in ((drawn[:, :4], 1.0), (drawn[:, 4:], 2.0)):
        assert 0.99 * bound < np.abs(part).max() <= bound
        assert part.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert abs(part.mean()) < 0.06 * bound
    wide = pipe.centre_numbers(0, 0, offset=2.0, slope=1.0)
    np.testing.assert_allclose(wide, drawn[0] * np.repeat([2, 0.5], [4, 5]))


def test_points_follow_the_centre_line() -> None:
    numbers = draw(2)
    points = pipe.solve(numbers, nodes=9).points
    x = torch.linspace(0, 10, 9, dtype=torch.float64)
    assert torch.equal(points[..., 0], x[:, None].expand(2, 9, 9))
    middle = pipe.centre_line(numbers, x)
    assert torch.allclose(points[:, :, 4, 1], middle, atol=1e-15)
    assert torch.allclose(points[:, :, 0, 1], middle - 0.5, atol=1e-15)
    assert torch.allclose(points[:, :, -1, 1], middle + 0.5, atol=1e-15)


def test_straight_pipe_has_poiseuilles_flow() -> None:
    solution = pipe.solve(torch.zeros(1, 9), nodes=17)
    y = solution.points[0, :, :, 1]
    assert float((solution.velocity[0, ..., 0] - 0.25 * (1 - 4 * y**2)).abs().max()) <= 1e-12
    assert float(solution.velocity[..., 1].abs().max()) <= 1e-12
    expected = 0.01 * (10 - solution.points[0, :, :, 0])
    assert float((solution.pressure[0] - expected).abs().max()) <= 1e-12
    assert solution.iterations.tolist() == [1]


def test_straight_pipe_at_an_angle_has_poiseuilles_flow() -> None:
    tilt = 0.1
    numbers = torch.tensor([[0.25, 0.5, 0.75, 1.0, 0.25, 0.25, 0.25, 0.25, 0.25]]).double()
    solution = pipe.solve(numbers, nodes=65)
    t = torch.linspace(-0.5, 0.5, 65, dtype=torch.float64)
    exact = 0.25 * (1 - 4 * t**2)
    middle = slice(24, 41)
    u, v = solution.velocity[0, middle].unbind(-1)
    assert float((u - exact).abs().max()) <= 1e-3 * 0.25
    assert float((v - tilt * exact).abs().max()) <= 1e-3 * 0.25
    slope = torch.diff(solution.pressure[0, middle, 32]).mean() / (10 / 64)
    # Across the flow the pipe is 1 / sqrt(1 + tilt²) wide; along x that makes 1 + tilt² twice.
    assert float(slope) == pytest.approx(-0.01 * (1 + tilt**2) ** 2, rel=1e-3)


def test_walls_and_inlet_are_exact() -> None:
    solution = pipe.solve(draw(2), nodes=17)
    assert (solution.velocity[:, :, [0, -1]] == 0).all()
    t = torch.linspace(0, 1, 17, dtype=torch.float64)
    assert torch.allclose(solution.velocity[:, 0, :, 0], t * (1 - t), atol=1e-15)
    assert (solution.velocity[:, 0, :, 1] == 0).all()


def test_no_fluid_is_lost() -> None:
    solution = pipe.solve(draw(8), nodes=33)
    through = 6 * flux(solution)
    assert float((through[:, 0] - 1).abs().max()) <= 1e-14
    # Tested with the corners' hats, div u = 0 keeps the mean over each element column, and the
    # outlet's flux, exactly; single lines of nodes only as well as the mesh resolves the flow.
    column = (through[:, :-2:2] + 4 * through[:, 1::2] + through[:, 2::2]) / 6
    assert float((column - 1).abs().max()) <= 1e-10
    assert float((through[:, -1] - 1).abs().max()) <= 1e-10
    assert float((through - 1).abs().amax(1).median()) <= 0.12


def test_mirrored_pipe_has_the_mirrored_flow() -> None:
    numbers = draw(3)
    solution, mirrored = pipe.solve(numbers, nodes=17), pipe.solve(-numbers, nodes=17)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert relative(mirrored.velocity.flip(2) * sign, solution.velocity) <= 1e-10
    assert relative(mirrored.pressure.flip(2), solution.pressure) <= 1e-10
    assert relative(mirrored.points.flip(2) * sign, solution.points) <= 1e-15


def test_both_linear_solvers_lead_to_one_flow() -> None:
    numbers = draw(3)
    sparse, dense = (pipe.solve(numbers, nodes=33, dense=dense) for dense in (False, True))
    assert relative(dense.velocity, sparse.velocity) <= 1e-10
    assert relative(dense.pressure, sparse.pressure) <= 1e-10
    assert torch.equal(dense.iterations, sparse.iterations)


def test_residual_is_the_true_one() -> None:
    numbers = draw(2)
    solution = pipe.solve(numbers, nodes=17)
    assert solution.converged.all()
    assert solution.residual.max() <= 1e-10
    assert solution.iterations.max() <= 7
    mesh = taylor_hood.strip(8, 10.0, 1.0, CPU)
    x = torch.linspace(0, 10, 17, dtype=torch.float64)
    gradient = taylor_hood.gradients(mesh, pipe.centre_line(numbers, x))
    corners = solution.pressure[:, ::2, ::2]
    state = torch.cat((solution.velocity.flatten(1), corners.flatten(1)), 1)
    rest = torch.zeros_like(state)
    rest[:, :34:2] = solution.velocity[:, 0, :, 0]
    left, whole = (
        taylor_hood.residual(mesh, gradient, at, 0.005).norm(dim=1) for at in (state, rest)
    )
    assert torch.allclose(left / whole, solution.residual, rtol=0.5, atol=1e-14)


def test_result_does_not_depend_on_batch_mates(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.cat((draw(3), torch.zeros(1, 9)))
    together = pipe.solve(torch.cat((numbers, 2 * numbers)), nodes=17, dense=True)
    monkeypatch.setattr(pipe, "_together", lambda mesh: 1)
    parts = pipe.solve(numbers, nodes=17, dense=True)
    for index, one in enumerate(numbers):
        alone = pipe.solve(one[None], nodes=17, dense=True)
        for other in (together, parts):
            assert relative(other.velocity[index], alone.velocity[0]) <= 1e-12
            assert other.iterations[index] == alone.iterations[0]
    assert together.iterations.unique().numel() > 2


def test_limit_is_reported_as_not_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "EASIER", ())
    solution = pipe.solve(torch.cat((draw(1), torch.zeros(1, 9))), nodes=17, limit=2)
    assert solution.iterations.tolist() == [3, 1]
    assert solution.converged.tolist() == [False, True]
    assert solution.residual[0] > 1e-6


def test_flow_out_of_reach_is_found_through_easier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = draw(3)
    solution = pipe.solve(numbers, nodes=17, viscosity=5e-4)
    assert solution.converged.all()
    assert solution.residual.max() <= 1e-10
    monkeypatch.setattr(pipe, "EASIER", ())
    plain = pipe.solve(numbers, nodes=17, viscosity=5e-4)
    assert plain.converged.tolist() == [False, True, False]
    assert torch.equal(plain.velocity[1], solution.velocity[1])
    assert (solution.iterations[[0, 2]] > plain.iterations[[0, 2]]).all()


@pytest.mark.parametrize("dense", [True, False])
def test_a_hopeless_pipe_is_reported_and_leaves_its_mates_alone(dense: bool) -> None:
    numbers = draw(3)
    numbers[1] *= 1e200
    solution = pipe.solve(numbers, nodes=9, dense=dense)
    assert solution.converged.tolist() == [True, False, True]
    alone = pipe.solve(numbers[2:], nodes=9, dense=dense)
    assert relative(solution.velocity[2], alone.velocity[0]) <= 1e-12


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    numbers = torch.zeros(3, 9)
    numbers[1, 4] = value
    with pytest.raises(DataError, match=r"finite; 1 of 3 .* batch index 1"):
        pipe.solve(numbers)


def test_bad_arguments_are_refused() -> None:
    for shape in ((1, 8), (0, 9)):
        with pytest.raises(ShapeError, match=r"\(batch, 9\), not empty, got"):
            pipe.solve(torch.zeros(shape))
    for nodes in (3, 10):
        with pytest.raises(ShapeError, match=f"odd number of nodes .* got {nodes}"):
            pipe.solve(torch.zeros(1, 9), nodes=nodes)
    for viscosity in (0.0, -1.0, math.nan):
        with pytest.raises(DataError, match="viscosity"):
            pipe.solve(torch.zeros(1, 9), nodes=5, viscosity=viscosity)
    with pytest.raises(ShapeError, match="at least 2 elements"):
        taylor_hood.strip(1, 10.0, 1.0, CPU)


@pytest.mark.slow
def test_full_size_pipe_is_resolved() -> None:
    numbers = draw(2)
    full = pipe.solve(numbers)
    assert full.converged.all()
    assert full.residual.max() <= 1e-10
    assert float((6 * flux(full) - 1).abs().max()) <= 0.01
    errors = []
    for nodes, worst in ((33, 0.2), (65, 0.05)):
        stride = 128 // (nodes - 1)
        coarse = pipe.solve(numbers, nodes=nodes)
        assert float((6 * flux(coarse) - 1).abs().max()) <= worst
        exact = full.velocity[:, ::stride, ::stride, 0]
        errors.append(float((coarse.velocity[..., 0] - exact).norm() / exact.norm()))
    assert errors[0] <= 0.06
    assert errors[1] <= 0.012
    blocks = pipe.solve(numbers[:1], dense=True)
    assert relative(blocks.velocity, full.velocity[:1]) <= 1e-10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("nodes", [33, 129])
def test_gpu_agrees_with_cpu(nodes: int) -> None:
    numbers = draw(3)
    here, there = (pipe.solve(at, nodes=nodes) for at in (numbers, numbers.cuda()))
    assert there.velocity.is_cuda
    assert there.converged.all()
    assert relative(there.velocity.cpu(), here.velocity) <= 1e-9
    assert relative(there.pressure.cpu(), here.pressure) <= 1e-9
