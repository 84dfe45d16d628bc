"""Euler flow: what a uniform stream, a reflected shape and conservation demand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from ono.errors import DataError
from ono.physics import airfoil, euler
from ono.physics.airfoil import Solution
from ono.physics.c_mesh import Cells, c_mesh, shape_parameters
from ono.physics.ddadi import change
from ono.physics.euler import J, K
from ono.physics.roe import GAMMA, primitive

QUICK = Cells(13, 30, 12)
HALVED = Cells(6, 16, 6)  # begins on every second node
SMALL = Cells(5, 14, 5)  # does not


def draw(count: int, *, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.stack([shape_parameters(seed, index) for index in range(count)]))


@lru_cache
def quick() -> Solution:
    """NACA 0012 and five drawn airfoils on the quick mesh."""
    return airfoil.solve(torch.cat((torch.zeros(1, 8), draw(5))), cells=QUICK)


def measured(theta: Tensor, cells: Cells = QUICK) -> euler.Geometry:
    return euler.geometry(c_mesh(theta, cells), cells.around // 2)


def out_of_cells(g: euler.Geometry, w: Tensor) -> Tensor:
    return euler.residual(g, *euler.ghosted(g, primitive(w)))


def wall_force(solution: Solution, cells: Cells) -> tuple[Tensor, Tensor]:
    """Return drag and lift coefficients from the pressure along the wall, chord 1."""
    wall = slice(cells.wake, cells.wake + cells.around + 1)
    step = solution.nodes[:, wall, 0].diff(dim=1)
    p = solution.flow[:, wall, 0, 3].double()
    p = (p[:, 1:] + p[:, :-1]) / 2
    scale = GAMMA / 2 * euler.MACH**2
    return -(p * step[..., 1]).sum(1) / scale, (p * step[..., 0]).sum(1) / scale


def test_cells_are_closed() -> None:
    g = measured(draw(3))
    area = (g.k_faces[:2] * g.k_faces[2]).diff(dim=K) + (g.j_faces[:2] * g.j_faces[2]).diff(dim=J)
    assert float(area.abs().max()) <= 1e-13
    for faces in (g.k_faces, g.j_faces):
        assert torch.allclose(faces[:2].norm(dim=0), torch.ones(1).double())
    # Where the halves meet they see the same face from two sides.
    assert torch.allclose(g.k_faces[:2, 0, 0], -g.k_faces[:2, 1, 0], atol=1e-12)
    cut = g.j_faces[:, :, g.wall :, 0]
    assert torch.allclose(cut[:2, 0], -cut[:2, 1], atol=1e-9)


def test_free_stream_is_steady_away_from_the_wall() -> None:
    g = measured(draw(3))
    r = out_of_cells(g, euler.free_stream(g)) / g.volume
    assert float(r[:, :, :, 2:].abs().max()) <= 1e-12
    assert float(r[:, :, g.wall + 2 :].abs().max()) <= 1e-12  # at the cut
    assert float(r[:, :, : g.wall, 0].abs().max()) > 1  # the airfoil is in the way


def test_slopes_are_exact_for_lines_and_small_at_jumps() -> None:
    line = 2 + torch.arange(8, dtype=torch.float64).expand(4, 8) * 0.3
    before, after = euler.reconstruct(line, 1)
    assert torch.allclose(before, after, atol=1e-15)
    assert torch.allclose(before[0], 2 + 0.3 * (torch.arange(5).double() + 1.5), atol=1e-14)
    jump = 1 + (torch.arange(8) >= 4).double().expand(4, 8)
    before, after = euler.reconstruct(jump, 1)
    assert float(before.max()) <= 2.001
    assert float(after.min()) >= 0.999


def test_density_and_pressure_at_faces_stay_positive() -> None:
    steep = torch.tensor([1.0, 1.0, 0.51, 0.02, 1e-3, 1e-3, 1e-3]).double().expand(4, 7)
    before, after = euler.reconstruct(steep, 1)
    assert float(before[::3].min()) > 0
    assert float(after[::3].min()) > 0


def test_a_share_of_no_slope_is_first_order() -> None:
    line = 2 + torch.arange(8, dtype=torch.float64).reshape(1, 8, 1).expand(4, 8, 2) * 0.3
    before, after = euler.reconstruct(line, 1, torch.tensor([0.0, 1.0]).double())
    assert torch.equal(before[..., 0], line[:, 1:6, 0])
    assert torch.allclose(before[..., 1], after[..., 1])


def test_interior_fluxes_cancel_in_the_sum() -> None:
    g = measured(draw(2))
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(g.volume.shape, generator=generator, dtype=torch.float64)
    w = euler.free_stream(g) * (1 + 0.1 * noise)
    w[..., -3:, :], w[:, :, -3:] = (
        euler.free_stream(g)[..., -3:, :],
        euler.free_stream(g)[:, :, -3:],
    )
    total = out_of_cells(g, w).flatten(1, 3).sum(1)
    # The rim holds the free stream, whose flux through a closed line is zero: mass and energy
    # cannot leave through the wall, and the momentum that does is the force on the airfoil.
    assert float(total[[0, 3]].abs().max()) <= 1e-11
    assert float(total[[1, 2]].abs().min()) >= 1e-3


def test_step_solves_the_factored_system() -> None:
    g = measured(draw(1), Cells(4, 8, 4))
    w = euler.free_stream(g)
    v = primitive(w)
    along, out = euler.ghosted(g, v)
    r = euler.residual(g, along, out)
    tiny = torch.full((1,), 1e-6, dtype=torch.float64)
    dw = change(g, v, along, out, r, tiny)
    # As dt goes to zero the step is explicit Euler: dw = -R dt / V, with one dt for each cell.
    dt = -dw / r
    known = r.abs() > 1e-3
    for other in (1, 2, 3):
        both = known[0] & known[other]
        assert torch.allclose(dt[other][both], dt[0][both], rtol=1e-3)
    assert dt[known].min() > 0


def test_flows_come_to_rest() -> None:
    solution = quick()
    assert solution.converged.all()
    assert solution.residual.max() <= airfoil.ACCEPTED
    assert solution.residual.min() > airfoil.ACCEPTED / 10
    assert 50 < solution.iterations.min() < solution.iterations.max() < 300
    assert solution.flow.shape == (6, 57, 13, 5)
    assert solution.flow.dtype == torch.float32
    assert solution.nodes.dtype == torch.float64


def test_residual_is_that_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def spy(g: euler.Geometry, w: Tensor) -> Tensor:
        kept.append(w.double())
        return euler.nodal(g, w)

    monkeypatch.setattr(airfoil, "nodal", spy)
    solution = airfoil.solve(draw(2), cells=SMALL)
    g = measured(draw(2), SMALL)
    now = (out_of_cells(g, kept[0])[0] / g.volume).square().sum((0, 1, 2)).sqrt()
    then = (out_of_cells(g, euler.free_stream(g))[0] / g.volume).square().sum((0, 1, 2)).sqrt()
    assert torch.allclose(solution.residual, now / then, rtol=1e-9)


def test_what_is_left_to_converge_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    mach = quick().flow[1:2, ..., 4].double()
    monkeypatch.setattr(airfoil, "TOLERANCE", 1e-6)
    monkeypatch.setattr(airfoil, "ACCEPTED", 1e-6)
    final = airfoil.solve(draw(1), cells=QUICK, dtype=torch.float64)
    assert final.converged.all()
    error = (mach - final.flow[..., 4]).flatten(1).norm(dim=1) / mach.flatten(1).norm(dim=1)
    assert float(error.max()) <= 1e-3


def test_a_symmetric_airfoil_has_symmetric_flow() -> None:
    mach = quick().flow[0, ..., 4]
    assert float((mach - mach.flip(0)).abs().max()) <= 1e-4
    drag, lift = wall_force(quick(), QUICK)
    assert abs(float(lift[0])) <= 1e-5
    assert 0 < float(drag[0]) < 0.1
    assert float(lift[1:].abs().min()) > 1e-3


def test_a_reflected_airfoil_has_the_reflected_flow() -> None:
    theta = draw(2)
    upside_down = -theta.flip(1)  # lower points become upper ones, and up becomes down
    one = airfoil.solve(theta, cells=HALVED, dtype=torch.float64)
    other = airfoil.solve(upside_down, cells=HALVED, dtype=torch.float64)
    sign = torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0])
    assert torch.allclose(other.flow.flip(1) * sign, one.flow, atol=1e-9)
    assert torch.equal(one.iterations, other.iterations)


def test_total_enthalpy_is_the_same_everywhere() -> None:
    rho, x, y, p, _ = quick().flow.double().unbind(-1)
    enthalpy = (GAMMA / (GAMMA - 1) * p / rho + (x * x + y * y) / 2).flatten(1)
    assert float((enthalpy.std(1) / enthalpy.mean(1)).max()) <= 1e-2  # 4e-4 on the full mesh
    free = GAMMA / (GAMMA - 1) + GAMMA * euler.MACH**2 / 2
    assert enthalpy.mean(1).numpy() == pytest.approx(free, rel=2e-3)


def test_mass_is_conserved_across_the_outer_boundary() -> None:
    solution = quick()
    nodes, flow = solution.nodes, solution.flow.double()
    rim = torch.cat((nodes[:, 0, :-1], nodes[:, :-1, -1], nodes[:, -1].flip(1)), 1)
    q = torch.cat((flow[:, 0, :-1], flow[:, :-1, -1], flow[:, -1].flip(1)), 1)
    step, mass = rim.diff(dim=1), q[..., :1] * q[..., 1:3]
    mean = (mass[:, 1:] + mass[:, :-1]) / 2
    through = (mean[..., 0] * step[..., 1] - mean[..., 1] * step[..., 0]).sum(1)
    passing = euler.FREE_STREAM[1] * 80
    assert float(through.abs().max()) <= 1e-3 * passing


def test_mach_number_is_that_of_the_other_fields() -> None:
    rho, x, y, p, mach = quick().flow.unbind(-1)
    expected = torch.hypot(x, y) / (GAMMA * p / rho).sqrt()
    assert torch.allclose(mach, expected, rtol=1e-6)
    assert (rho > 0).all()
    assert (p > 0).all()
    assert 1.0 < mach[1:].flatten(1).amax(1).max() < 1.6


def test_far_field_is_the_free_stream() -> None:
    mach = quick().flow[:, :, -1, 4]
    assert float((mach - euler.MACH).abs().max()) <= 0.02


def test_the_cut_shows_one_flow() -> None:
    flow = quick().flow
    wake = QUICK.wake
    assert torch.equal(flow[:, : wake + 1, 0], flow[:, -wake - 1 :, 0].flip(1))


def test_result_does_not_depend_on_batch_mates(monkeypatch: pytest.MonkeyPatch) -> None:
    together = quick()
    monkeypatch.setitem(airfoil.CHUNK, "cpu", 1)
    alone = airfoil.solve(draw(5)[4:], cells=QUICK)
    assert torch.allclose(alone.flow, together.flow[5:], atol=2e-5)
    assert (alone.iterations - together.iterations[5:]).abs().max() <= 1
    assert together.iterations.unique().numel() > 1


def test_a_flow_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    theta = draw(2)
    good = airfoil.solve(theta, cells=SMALL)
    assert good.converged.all()
    hasty = replace(airfoil.SMALL, limit=5)
    monkeypatch.setattr(airfoil, "SMALL", hasty)
    again = airfoil.solve(theta, cells=SMALL)
    assert again.converged.all()
    assert (again.iterations > good.iterations).all()
    mach = good.flow[..., 4]
    error = (again.flow[..., 4] - mach).flatten(1).norm(dim=1) / mach.flatten(1).norm(dim=1)
    assert 0 < float(error.max()) <= 5e-3
    monkeypatch.setattr(airfoil, "REMEDY", hasty)
    never = airfoil.solve(theta, cells=SMALL)
    assert never.iterations.tolist() == [10, 10]
    assert not never.converged.any()
    assert (never.residual > airfoil.ACCEPTED).all()


def test_a_flow_that_is_lost_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    theta = draw(2)
    good = airfoil.solve(theta[1:], cells=SMALL)

    def spoil(g: euler.Geometry) -> Tensor:
        w = euler.free_stream(g)
        w[..., 0] = math.nan
        return w

    monkeypatch.setattr(airfoil, "free_stream", spoil)
    lost = airfoil.solve(theta, cells=SMALL)
    assert lost.converged.tolist() == [False, True]
    assert torch.isinf(lost.residual[0])
    assert torch.allclose(lost.flow[1], good.flow[0], atol=2e-5)


def test_a_folded_mesh_is_reported_and_leaves_its_mates_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(airfoil, "SMALL", replace(airfoil.SMALL, limit=100))
    theta = draw(3)
    theta[1] = torch.tensor([0, 0.9, -0.9, 0, 0, 0.9, -0.9, 0])
    assert (measured(theta, SMALL).volume[..., 1] <= 0).any()
    solution = airfoil.solve(theta, cells=SMALL)
    assert solution.converged.tolist() == [True, False, True]
    alone = airfoil.solve(theta[2:], cells=SMALL)
    assert torch.allclose(solution.flow[2], alone.flow[0], atol=2e-5)


def test_other_precisions_are_refused() -> None:
    with pytest.raises(DataError, match="float16"):
        airfoil.solve(torch.zeros(1, 8), dtype=torch.float16)
    with pytest.raises(DataError, match="finite"):
        airfoil.solve(torch.full((1, 8), math.nan))


@pytest.mark.slow
def test_published_mesh_has_its_shock_where_it_belongs() -> None:
    cells = Cells()
    solution = airfoil.solve(torch.zeros(1, 8))
    assert solution.converged.all()
    mach, nodes = solution.flow[0, ..., 4].double(), solution.nodes[0]
    assert float(mach.max()) == pytest.approx(1.24, abs=0.03)
    assert float((mach - mach.flip(0)).abs().max()) <= 1e-4
    assert abs(float(wall_force(solution, cells)[1])) <= 1e-5
    side, x = mach[50:111, 0], nodes[50:111, 0, 0]
    fall = side[1:] - side[:-1]  # from the trailing edge to the nose, so a shock is a rise
    steepest = int(fall[5:50].argmax()) + 5
    assert float((x[steepest] + x[steepest + 1]) / 2) == pytest.approx(0.5, abs=0.03)
    rho, u, v, p, _ = solution.flow[0].double().unbind(-1)
    enthalpy = GAMMA / (GAMMA - 1) * p / rho + (u * u + v * v) / 2
    assert float(enthalpy.std() / enthalpy.mean()) <= 1e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("cells", [QUICK, HALVED])
def test_gpu_agrees_with_cpu(cells: Cells) -> None:
    theta = draw(20)
    here, there = airfoil.solve(theta, cells=cells), airfoil.solve(theta.cuda(), cells=cells)
    assert there.flow.is_cuda
    assert there.converged.all()
    assert float((there.flow.cpu() - here.flow).abs().max()) <= 1e-3
    assert (there.iterations.cpu() - here.iterations).abs().max() <= 5
