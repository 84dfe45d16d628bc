"""One implicit step of the Euler equations: diagonally dominant, alternating directions (DDADI).

Instead of V dw / dt + R(w + dw) = 0 the step solves, both directions one after the other,

    (D + X_j) D^-1 (D + X_k) dw = -R(w),    D = V / dt + half the sum of |A| over the faces,

where X couples a cell to its neighbours by the Jacobian of a first-order flux: -(A + |A|) / 2 to
the one before it, (A - |A|) / 2 to the one after. Each factor is a set of block-tridiagonal lines.
Cells at the cut are a hundred times longer than high, which only implicit steps can bear.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ono.physics.block_thomas import solve_lines
from ono.physics.euler import Geometry, J, K
from ono.physics.roe import GAMMA, absolute_jacobian, jacobian, wall_jacobian

LARGEST_CHANGE = 0.3  # of rho and p, relative, in one step


def _inverse_time_step(g: Geometry, v: Tensor, cfl: Tensor) -> Tensor:
    """Return V / dt: the sum of the speeds of waves across a cell, over the Courant number."""
    rho, x, y, p = v.unbind()
    c = (GAMMA * p / rho).sqrt()
    speeds = []
    for faces, axis in ((g.k_faces, K), (g.j_faces, J)):
        count = faces.shape[axis] - 1
        area = faces[:2] * faces[2]
        area = (area.narrow(axis, 0, count) + area.narrow(axis, 1, count)) / 2
        speeds.append((x * area[0] + y * area[1]).abs() + c * area.norm(dim=0))
    rate: Tensor = (speeds[0] + speeds[1]) / cfl
    return rate


def _sweep(diagonal: Tensor, to_next: Tensor, to_last: Tensor, rhs: Tensor, axis: int) -> Tensor:
    """Solve (D + X) x = rhs along an axis, from the free stream to where the halves meet."""
    panels = torch.cat((diagonal, to_last, rhs[:, None]), 1).movedim(axis + 1, 0)
    x = solve_lines(panels, to_next.movedim(axis + 1, 0))
    change: Tensor = x.movedim(0, axis)
    return change


def _couple(v: Tensor, faces: Tensor, absolute: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return the coupling of each cell to the one after it and to the one before it."""
    cells = faces.shape[axis] - 1
    low, high = faces.narrow(axis, 0, cells), faces.narrow(axis, 1, cells)
    to_last = jacobian(v.narrow(axis, 1, cells), low)
    to_last.add_(absolute.narrow(axis + 1, 0, cells)).mul_(-0.5)
    to_next = jacobian(v.narrow(axis, 3, cells), high)
    to_next.sub_(absolute.narrow(axis + 1, 1, cells)).mul_(0.5)
    return to_next, to_last


def _absolute(v: Tensor, faces: Tensor, axis: int) -> Tensor:
    count = faces.shape[axis]
    return absolute_jacobian((v.narrow(axis, 1, count) + v.narrow(axis, 2, count)) / 2, faces)


def change(
    g: Geometry,
    v: Float[Tensor, "4 2 k j batch"],
    along: Tensor,
    out: Tensor,
    r: Float[Tensor, "4 2 k j batch"],
    cfl: Float[Tensor, " batch"],
) -> Float[Tensor, "4 2 k j batch"]:
    """Return dw of one step, cut back where rho or p would change by more than 30 %.

    Nor may the velocity change by more than that share of c: with both, p stays positive.

    `along` and `out` are v with its ghost cells, r is the residual.
    """
    k_abs, j_abs = _absolute(along, g.k_faces, K), _absolute(out, g.j_faces, J)
    # What couples a cell to itself through A cancels over closed cells; at a wall, with a flux F
    # of its own, A / 2 - dF/dw is left, and |A| / 2 is not needed.
    at_wall, face = out[:, :, : g.wall, 2], g.j_faces[:, :, : g.wall, 0]
    j_abs[:, :, :, : g.wall, 0] = jacobian(at_wall, face) - 2 * wall_jacobian(at_wall, face)
    diagonal = k_abs[:, :, :, :-1] + k_abs[:, :, :, 1:]
    diagonal.add_(j_abs[..., :-1, :]).add_(j_abs[..., 1:, :]).mul_(0.5)
    rate = _inverse_time_step(g, v, cfl)
    for row in range(4):
        diagonal[row, row] += rate

    to_next, to_last = _couple(out, g.j_faces, j_abs, J)
    to_last[:, :, :, : g.wall, 0] = 0
    dw = _sweep(diagonal, to_next, to_last, -r, J)
    to_next, to_last = _couple(along, g.k_faces, k_abs, K)
    dw = _sweep(diagonal, to_next, to_last, (diagonal * dw).sum(1), K)

    rho, x, y, p = v.unbind()
    dp = (GAMMA - 1) * (dw[3] - x * dw[1] - y * dw[2] + (x * x + y * y) / 2 * dw[0])
    most = torch.maximum((dw[0] / rho).abs(), (dp / p).abs())
    dq = (dw[1] - x * dw[0]).square() + (dw[2] - y * dw[0]).square()
    most = torch.maximum(most, (dq / (GAMMA * p * rho)).sqrt()) / LARGEST_CHANGE
    return dw / most.clamp_min(1)
