"""An O-mesh of nine-node elements between a void and the sides of the unit square.

Node (row, column) lies at x = 1/2 + [(1 - s) r(phi) + s o(phi)] (cos phi, sin phi): s runs from the
void to the side, o(phi) is the distance of the side. Only r differs from void to void.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ono.errors import ShapeError

TEMPLATE = (36, 3)  # the elements whose Gauss points carry the answer, in the same order
GAUSS = torch.tensor([-math.sqrt(0.6), 0.0, math.sqrt(0.6)], dtype=torch.float64)
GAUSS_WEIGHT = torch.tensor([5 / 9, 8 / 9, 5 / 9], dtype=torch.float64)


def _quadratic(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the three parabolas with nodes -1, 0, 1 and their slopes, in a last axis."""
    value = torch.stack((x * (x - 1) / 2, 1 - x**2, x * (x + 1) / 2), -1)
    return value, torch.stack((x - 0.5, -2 * x, x + 0.5), -1)


def _product(radial: Tensor, angular: Tensor) -> Tensor:
    """Return the nine functions of an element, 3 radial + angular, from three of each kind."""
    return (radial[..., :, None] * angular[..., None, :]).flatten(-2)


@dataclass(frozen=True, slots=True)
class Mesh:
    """What all voids share: element (i, j) is number i angular + j, rows of nodes go outwards.

    There are 2 radial + 1 rows of 2 angular nodes, and one row without use that makes the number
    even: two rows are one block of the stiffness matrix. Angles start at pi/4, in a corner.
    """

    angles: Float[Tensor, " angles"]  # where r is needed: the columns of nodes, then the points
    depth: Float[Tensor, " rows"]  # s, from 0 at the void to 1 at the side
    nodes: Int[Tensor, "elements 9"]
    free: Bool[Tensor, "nodes 2"]
    pull: Float[Tensor, "nodes 2"]  # nodal forces of the traction (0, 1) on the top side
    shape: Float[Tensor, "9 9"]  # the nine functions at the nine Gauss points
    slope: Float[Tensor, "9 9 2"]  # their slopes along the radial and the angular coordinate
    weight: Float[Tensor, " 9"]
    kept: Int[Tensor, " kept"]  # entries of the element matrices on or below the block diagonal
    slot: Int[Tensor, " kept"]  # and where they go in the panels
    panels: tuple[int, int, int]
    point_depth: Float[Tensor, " points"]
    point_nodes: Int[Tensor, "points 9"]
    point_shape: Float[Tensor, "points 9"]


def _template() -> tuple[Tensor, Tensor]:
    """Return the turn from pi/4 (a whole turn is 1) and the depth s of the points.

    Elements come wedge by wedge, each from the void outwards; so do the Gauss points of one.
    """
    around, out = TEMPLATE
    turn = (torch.arange(around)[:, None] + (GAUSS + 1) / 2)[:, None, :, None] / around
    depth = (torch.arange(out)[:, None] + (GAUSS + 1) / 2)[None, :, None, :] / out
    turn, depth = torch.broadcast_tensors(turn, depth)
    return turn.flatten(), depth.flatten()


@lru_cache(maxsize=8)
def o_mesh(angular: int, radial: int, device: torch.device) -> Mesh:
    """Build the O-mesh of `angular` x `radial` elements; a side takes a quarter of `angular`."""
    if angular < 4 or angular % 4 or radial < 1:
        raise ShapeError(
            f"the O-mesh needs a multiple of 4 elements around the void and at least 1 from it to "
            f"the sides, got {angular} x {radial}"
        )
    rows, columns = 2 * radial + 2, 2 * angular
    local = torch.arange(3)
    row = 2 * torch.arange(radial)[:, None, None, None] + local[:, None]
    column = (2 * torch.arange(angular)[:, None, None] + local) % columns
    nodes = (row * columns + column).reshape(-1, 9)

    value, slope = _quadratic(GAUSS)
    shape = _product(value[:, None], value).flatten(0, 1)
    slopes = torch.stack((_product(slope[:, None], value), _product(value[:, None], slope)), -1)

    # Elements grow outwards threefold, s = (3^t - 1) / 2 for equal steps of t; the points do not.
    depth = (3 ** (torch.arange(rows, dtype=torch.float64) / (2 * radial)) - 1) / 2
    turn, point_depth = _template()
    out, around = radial * torch.log1p(2 * point_depth) / math.log(3), angular * turn
    i, j = out.long(), around.long()
    point_shape = _product(_quadratic(2 * (out - i) - 1)[0], _quadratic(2 * (around - j) - 1)[0])
    turns = torch.cat((torch.arange(columns, dtype=torch.float64) / columns, turn))
    angles = math.pi / 4 + 2 * math.pi * turns

    free = torch.ones(rows, columns, 2, dtype=torch.bool)
    free[-1] = False
    free[-2, angular : angular + angular // 2 + 1] = False  # the bottom side, clamped
    pull = torch.zeros(rows, columns, 2, dtype=torch.float64)
    top = torch.arange(0, angular // 2, 2)[:, None] + local
    x = 0.5 / torch.tan(angles[top])
    length = -torch.einsum("ga,ea->eg", slope, x) * GAUSS_WEIGHT
    pull[-2, :, 1].index_add_(0, top.flatten(), (length @ value).flatten())

    # Two rows of nodes are a block of n unknowns; the next block is met by its first row, n / 2.
    size = 4 * columns
    unknown = (2 * nodes[:, :, None] + torch.arange(2)).flatten(1)
    block = unknown[:, None, :] // size
    below = unknown[:, :, None] - block * size
    kept = (below >= 0).flatten().nonzero().flatten()
    slot = (block * (size + size // 2) + below) * size + unknown[:, None, :] % size
    return Mesh(
        angles=angles.to(device),
        depth=depth.to(device),
        nodes=nodes.to(device),
        free=free.flatten(0, 1).to(device),
        pull=pull.flatten(0, 1).to(device),
        shape=shape.to(device),
        slope=slopes.flatten(0, 1).to(device),
        weight=torch.outer(GAUSS_WEIGHT, GAUSS_WEIGHT).flatten().to(device),
        kept=kept.to(device),
        slot=slot.flatten()[kept].to(device),
        panels=(radial + 1, size + size // 2, size),
        point_depth=point_depth.to(device),
        point_nodes=nodes[i * angular + j].to(device),
        point_shape=point_shape.to(device),
    )


def position(radius: Tensor, phi: Tensor, depth: Tensor) -> Tensor:
    """Return x = 1/2 + [(1 - s) r + s o] (cos phi, sin phi), o the distance to the side."""
    direction = torch.stack((phi.cos(), phi.sin()), -1)
    side = 0.5 / direction.abs().amax(-1)
    return 0.5 + ((1 - depth) * radius + depth * side)[..., None] * direction


def node_positions(
    mesh: Mesh, radius: Float[Tensor, "batch angles"]
) -> Float[Tensor, "batch nodes 2"]:
    """Return the nodes around voids of the given radius at `mesh.angles`."""
    columns = len(mesh.angles) - len(mesh.point_depth)
    phi = mesh.angles[:columns]
    return position(radius[:, None, :columns], phi, mesh.depth[:, None]).flatten(1, 2)


def point_positions(
    mesh: Mesh, radius: Float[Tensor, "batch angles"]
) -> Float[Tensor, "batch points 2"]:
    """Return the points of the answer around the same voids."""
    count = len(mesh.point_depth)
    return position(radius[:, -count:], mesh.angles[-count:], mesh.point_depth)
