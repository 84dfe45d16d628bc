"""Taylor-Hood elements (Q2 velocity, Q1 pressure) for steady flow in a sheared strip.

Elements stand in m columns of m. All of a column are sheared alike: with the width and height
(hx, hy) of an element and its own coordinates xi, eta in [-1, 1],

    x = x_0 + hx (xi + 1) / 2,    y = c(xi) + y_0 + hy (eta + 1) / 2,

c being the parabola through the three nodes of the centre line. The Jacobian is hx hy / 4
everywhere, and d/dx = 2/hx (d/dxi - c' 2/hy d/deta), d/dy = 2/hy d/deta. In weak form the flow is

    integral of nu grad u : grad v - p div v + v · (u · grad) u - q div u = 0  for all v, q,

so that nu du/dn = p n where no velocity is given: the outlet is free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ono.errors import ShapeError

GAUSS = torch.tensor([-math.sqrt(0.6), 0.0, math.sqrt(0.6)], dtype=torch.float64)
GAUSS_WEIGHT = torch.tensor([5 / 9, 8 / 9, 5 / 9], dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Mesh:
    """What all strips share; first index along the strip, second across, in every numbering.

    Unknowns are the velocities at the n x n nodes (n = 2 m + 1), node by node, then the pressures
    at the (m + 1)² corners. Those of an element: velocities of its 9 nodes, pressures of its 4.
    """

    side: int  # m, elements along each axis
    unknowns: Int[Tensor, "elements 22"]
    free: Bool[Tensor, " unknowns"]  # not given at the inlet or on a wall
    shape: Float[Tensor, "9 9"]  # the nine parabolas at the nine Gauss points (point, node)
    slope: Float[Tensor, "9 9 2"]  # their derivatives by x if nothing were sheared, and by y
    linear: Float[Tensor, "9 4"]
    bend: Float[Tensor, "9 3"]  # c at three nodes -> dc/dx at the Gauss points
    weight: Float[Tensor, " 9"]  # with the Jacobian

    @property
    def nodes(self) -> int:
        """Return n, the nodes along each axis."""
        return 2 * self.side + 1


def _tensor(along: Tensor, across: Tensor) -> Tensor:
    """Return products of functions along and across, at products of points."""
    product = torch.einsum("ga,hb->ghab", along, across)
    return product.flatten(2, 3).flatten(0, 1)


@lru_cache(maxsize=8)
def strip(side: int, length: float, width: float, device: torch.device) -> Mesh:
    """Build the mesh of side x side elements."""
    if side < 2:
        raise ShapeError(f"a strip needs at least 2 elements along each axis, got {side}")
    nodes = 2 * side + 1
    x = GAUSS
    parabola = torch.stack((x * (x - 1) / 2, 1 - x**2, x * (x + 1) / 2), -1)
    slope = torch.stack((x - 0.5, -2 * x, x + 0.5), -1)
    line = torch.stack(((1 - x) / 2, (1 + x) / 2), -1)
    hx, hy = length / side, width / side
    slopes = (_tensor(slope, parabola) * 2 / hx, _tensor(parabola, slope) * 2 / hy)

    element = torch.arange(side)
    column = (2 * element[:, None] + torch.arange(3))[:, None, :, None]
    row = (2 * element[:, None] + torch.arange(3))[None, :, None, :]
    node = (column * nodes + row).reshape(side**2, 9)
    velocity = (2 * node[..., None] + torch.arange(2)).flatten(1)
    column = (element[:, None] + torch.arange(2))[:, None, :, None]
    row = (element[:, None] + torch.arange(2))[None, :, None, :]
    pressure = 2 * nodes**2 + (column * (side + 1) + row).reshape(side**2, 4)

    moving = torch.ones(nodes, nodes, 2, dtype=torch.bool)
    moving[0] = moving[:, 0] = moving[:, -1] = False
    free = torch.cat((moving.flatten(), torch.ones((side + 1) ** 2, dtype=torch.bool)))
    return Mesh(
        side=side,
        unknowns=torch.cat((velocity, pressure), 1).to(device),
        free=free.to(device),
        shape=_tensor(parabola, parabola).to(device),
        slope=torch.stack(slopes, -1).to(device),
        linear=_tensor(line, line).to(device),
        bend=(slope * 2 / hx).repeat_interleave(3, 0).to(device),
        weight=torch.outer(GAUSS_WEIGHT, GAUSS_WEIGHT).flatten().to(device) * (hx * hy / 4),
    )


def gradients(
    mesh: Mesh, centre: Float[Tensor, "batch nodes"]
) -> Float[Tensor, "batch columns 9 9 2"]:
    """Return the gradients of the nine functions at each Gauss point, column by column."""
    slant = torch.einsum("ga,bia->big", mesh.bend, centre.unfold(1, 3, 2))
    by_x, by_y = mesh.slope.unbind(-1)
    sheared = by_x - slant[..., None] * by_y
    return torch.stack((sheared, by_y.expand_as(sheared)), -1)


def _local(mesh: Mesh, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the velocities [batch column row 9 2] and pressures [... 4] of the elements."""
    local = x[:, mesh.unknowns].unflatten(1, (mesh.side, mesh.side))
    return local[..., :18].unflatten(-1, (9, 2)), local[..., 18:]


def residual(
    mesh: Mesh,
    gradient: Float[Tensor, "batch columns 9 9 2"],
    x: Float[Tensor, "batch unknowns"],
    viscosity: float,
    *,
    advection: bool = True,
) -> Float[Tensor, "batch unknowns"]:
    """Return the weak form at x for each test function; zero where a velocity is given."""
    nodal, corner = _local(mesh, x)
    u = torch.einsum("gn,bijnc->bijgc", mesh.shape, nodal)
    du = torch.einsum("bignk,bijnc->bijgck", gradient, nodal)
    p = torch.einsum("gq,bijq->bijg", mesh.linear, corner)
    flux = viscosity * du
    flux.diagonal(dim1=-2, dim2=-1).sub_(p[..., None])
    flux *= mesh.weight[:, None, None]
    momentum = torch.einsum("bijgck,bignk->bijnc", flux, gradient)
    if advection:
        carried = (du @ u[..., None])[..., 0] * mesh.weight[:, None]
        momentum += torch.einsum("gn,bijgc->bijnc", mesh.shape, carried)
    divergence = du.diagonal(dim1=-2, dim2=-1).sum(-1)
    mass = -torch.einsum("g,gq,bijg->bijq", mesh.weight, mesh.linear, divergence)
    local = torch.cat((momentum.flatten(-2), mass), -1)
    return torch.zeros_like(x).index_add_(1, mesh.unknowns.flatten(), local.flatten(1)) * mesh.free


def jacobian(
    mesh: Mesh,
    gradient: Float[Tensor, "batch columns 9 9 2"],
    x: Float[Tensor, "batch unknowns"],
    viscosity: float,
    *,
    advection: bool = True,
) -> Float[Tensor, "batch elements 22 22"]:
    """Return the derivative of `residual` by x, element by element.

    Rows and columns of given velocities are zero. Without `advection` it is Stokes's operator.
    """
    weighted = mesh.weight[:, None] * mesh.shape
    flat = gradient.transpose(-2, -1).flatten(2, 3)  # points and directions, nodes
    stretched = flat * mesh.weight.repeat_interleave(2)[:, None]
    viscous = viscosity * (flat.mT @ stretched)
    out = x.new_zeros(len(x), mesh.side, mesh.side, 22, 22)
    block = out[..., :18, :18].unflatten(-1, (9, 2)).unflatten(-3, (9, 2))
    same = viscous[:, :, None]
    if advection:
        nodal, _ = _local(mesh, x)
        u = torch.einsum("gn,bijnc->bijgc", mesh.shape, nodal)
        du = torch.einsum("bignk,bijnc->bijgck", gradient, nodal)
        carried = torch.einsum("bijgk,bignk->bijgn", u, gradient)
        same = same + weighted.mT @ carried
        pairs = torch.einsum("ga,gn->gan", weighted, mesh.shape)
        block.copy_(torch.einsum("bijgck,gan->bijacnk", du, pairs))
    for c in range(2):
        block[..., c, :, c] += same
    coupling = -torch.einsum("gq,bignc->bincq", mesh.weight[:, None] * mesh.linear, gradient)
    coupling = coupling.flatten(2, 3)[:, :, None]
    out[..., :18, 18:] = coupling
    out[..., 18:, :18] = coupling.mT
    free = mesh.free[mesh.unknowns].to(x.dtype).unflatten(0, (mesh.side, mesh.side))
    out *= free[..., :, None] * free[..., None, :]
    matrices: Tensor = out.flatten(1, 2)
    return matrices
