"""Taylor-Hood elements: derivatives, an exact flow, and the two ways to solve the systems."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ono.errors import ShapeError
from ono.physics import column_elimination, sparse_lu, taylor_hood
from ono.physics.taylor_hood import Mesh

CPU = torch.device("cpu")


def any_state(side: int, batch: int) -> tuple[Mesh, Tensor, Tensor, Tensor]:
    """Return a mesh, bent centre lines, gradients, and unknowns without sense."""
    mesh = taylor_hood.strip(side, 10.0, 1.0, CPU)
    generator = torch.Generator().manual_seed(side)
    centre = torch.rand(batch, mesh.nodes, dtype=torch.float64, generator=generator)
    x = torch.randn(batch, len(mesh.free), dtype=torch.float64, generator=generator)
    return mesh, centre, taylor_hood.gradients(mesh, centre), x


def apply(mesh: Mesh, matrices: Tensor, x: Tensor) -> Tensor:
    """Return A x, A given element by element."""
    local = (matrices @ x[:, mesh.unknowns][..., None])[..., 0]
    return torch.zeros_like(x).index_add_(1, mesh.unknowns.flatten(), local.flatten(1))


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def positions(mesh: Mesh, centre: Tensor, length: float, width: float) -> Tensor:
    """Return the nodes [batch, node, 2]."""
    x = torch.linspace(0, length, mesh.nodes, dtype=torch.float64)
    y = torch.linspace(-width / 2, width / 2, mesh.nodes, dtype=torch.float64)
    x = x[:, None].expand(len(centre), mesh.nodes, mesh.nodes)
    return torch.stack((x, centre[..., None] + y), -1).flatten(1, 2)


def test_gradients_are_those_of_the_nodes_themselves() -> None:
    mesh, centre, gradient, _ = any_state(4, 2)
    nodal = positions(mesh, centre, 10.0, 1.0)[:, mesh.unknowns[:, :18:2] // 2]
    du = torch.einsum("bignk,bijnc->bijgck", gradient, nodal.unflatten(1, (4, 4)))
    assert relative(du, torch.eye(2, dtype=torch.float64).expand_as(du)) <= 1e-13
    assert float(mesh.weight.sum()) == pytest.approx(10 / 16)


@pytest.mark.parametrize("advection", [True, False])
def test_jacobian_is_the_derivative_of_the_residual(advection: bool) -> None:
    mesh, _, gradient, x = any_state(3, 2)
    step = x.flip(0, 1) * mesh.free

    def at(y: Tensor) -> Tensor:
        return taylor_hood.residual(mesh, gradient, y, 0.03, advection=advection)

    product = apply(mesh, taylor_hood.jacobian(mesh, gradient, x, 0.03, advection=advection), step)
    # The residual is quadratic, so that central differences have no error but rounding.
    assert relative(product, (at(x + step) - at(x - step)) / 2) <= 1e-12


@pytest.mark.parametrize("side", [2, 3, 8])
def test_dense_columns_agree_with_sparse_lu(side: int) -> None:
    mesh, _, gradient, x = any_state(side, 3)
    matrices = taylor_hood.jacobian(mesh, gradient, 0.1 * x, 0.005)
    b = x * mesh.free
    direct = sparse_lu.pattern(mesh.unknowns, mesh.free).solve(matrices, b)
    blocks = column_elimination.columns(mesh).solve(matrices, b)
    assert relative(blocks, direct) <= 1e-10
    assert (blocks[:, ~mesh.free] == 0).all()
    assert relative(apply(mesh, matrices, direct), b) <= 1e-10


def test_a_singular_system_gives_nan_alone() -> None:
    mesh, _, gradient, x = any_state(2, 3)
    matrices = taylor_hood.jacobian(mesh, gradient, x, 0.005)
    solver = sparse_lu.pattern(mesh.unknowns, mesh.free)
    good = solver.solve(matrices, x)
    matrices[1] = 0
    found = solver.solve(matrices, x)
    assert found[1, mesh.free].isnan().all()
    assert torch.equal(found[[0, 2]], good[[0, 2]])


def exact_flow(at: Tensor, nu: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the velocity of psi = sin x cos 2y, a pressure, and the force that drives them."""
    x, y = at.unbind(-1)
    sx, cx, sy, cy = x.sin(), x.cos(), (2 * y).sin(), (2 * y).cos()
    u, v = -2 * sx * sy, -cx * cy
    p = cx * sy
    force_x = u * (-2 * cx * sy) + v * (-4 * sx * cy) + 5 * nu * u - sx * sy
    force_y = u * (sx * cy) + v * (2 * cx * sy) + 5 * nu * v + 2 * cx * cy
    return torch.stack((u, v), -1), p, torch.stack((force_x, force_y), -1)


def manufactured_error(side: int) -> float:
    """Return the error of the velocity at the nodes, all of the boundary held."""
    length, width, nu = 2.0, 1.0, 0.05
    mesh = taylor_hood.strip(side, length, width, CPU)
    n = mesh.nodes
    held = mesh.free.clone()
    held[: 2 * n**2].view(n, n, 2)[-1] = False
    held[2 * n**2] = False  # one pressure, as no outlet sets its level
    mesh = replace(mesh, free=held)
    centre = 0.3 * torch.linspace(0, length, n, dtype=torch.float64).mul(2).sin()[None]
    gradient = taylor_hood.gradients(mesh, centre)
    at = positions(mesh, centre, length, width)
    velocity, pressure, _ = exact_flow(at, nu)
    corners = pressure.view(n, n)[::2, ::2]
    exact = torch.cat((velocity.flatten(), corners.flatten()))[None]

    gauss = torch.einsum("gn,ben->beg", mesh.shape, at[:, mesh.unknowns[:, :18:2] // 2, 0])
    height = torch.einsum("gn,ben->beg", mesh.shape, at[:, mesh.unknowns[:, :18:2] // 2, 1])
    _, _, force = exact_flow(torch.stack((gauss, height), -1), nu)
    local = torch.einsum("gn,begc->benc", mesh.weight[:, None] * mesh.shape, force).flatten(2)
    load = torch.zeros_like(exact)
    load.index_add_(1, mesh.unknowns[:, :18].flatten(), local.flatten(1))

    x = exact * ~mesh.free
    solver = sparse_lu.pattern(mesh.unknowns, mesh.free)
    for _ in range(8):
        left = taylor_hood.residual(mesh, gradient, x, nu) - load * mesh.free
        x = x - solver.solve(taylor_hood.jacobian(mesh, gradient, x, nu), left)
    assert float(left.abs().max()) <= 1e-13
    return float((x - exact)[:, : 2 * n**2].square().mean().sqrt())


def test_velocity_has_order_three() -> None:
    coarse, fine, finest = (manufactured_error(side) for side in (4, 8, 16))
    assert math.log2(coarse / fine) >= 2.8
    assert math.log2(fine / finest) >= 2.9
    assert finest <= 1e-4


def test_a_single_element_is_refused() -> None:
    with pytest.raises(ShapeError, match="at least 2 elements"):
        taylor_hood.strip(1, 10.0, 1.0, CPU)
