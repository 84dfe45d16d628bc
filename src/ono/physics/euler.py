"""The steady Euler equations at Mach 0.8 on a C-mesh: R(w) = 0, R the flux out of each cell.

Slopes of (rho, u, v, p) limited as van Albada did give two states at a face, Roe's flux joins
them. A wall feels pressure alone, outside is the free stream, gamma = 1.4.

A C-mesh is two halves, upper and lower, and arrays are [components, half, k, j, batch]: k runs
from the nose over the airfoil and along the cut to the outlet, j from the wall or cut to the far
field. In both directions the high end meets the free stream, and the low end the same place of
the other half: across the line before the nose (k = 0), across the cut (j = 0), unless there is a
wall. So one code serves both directions, and a reflected shape gets the reflected flow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ono.physics.roe import GAMMA, conserved, primitive, roe_flux

MACH = 0.8
FREE_STREAM = (1.0, MACH * math.sqrt(GAMMA), 0.0, 1.0)  # rho, u, v, p
K, J = 2, 3  # axes
# Differences below sqrt(SMOOTH) are not limited: with less, the limiter switches for ever.
SMOOTH = 1e-3
MOST = 0.4  # of a cell's density or pressure: what half a slope may be


@dataclass(frozen=True, slots=True)
class Geometry:
    """Cells and faces of a batch of C-meshes; unit normals point towards growing k, growing j."""

    wall: int  # so many cells from the nose on have a wall at j = 0
    free: Float[Tensor, " 4"]  # (rho, u, v, p) outside
    volume: Float[Tensor, "2 k j batch"]
    k_faces: Float[Tensor, "4 2 k_faces j batch"]  # nx, ny, length, width
    j_faces: Float[Tensor, "4 2 k j_faces batch"]

    def take(self, which: Tensor) -> Geometry:
        """Return the geometry of some samples."""
        parts = (self.volume, self.k_faces, self.j_faces)
        return Geometry(self.wall, self.free, *(part[..., which] for part in parts))

    def to(self, dtype: torch.dtype) -> Geometry:
        """Return the geometry in another precision."""
        parts = (self.free, self.volume, self.k_faces, self.j_faces)
        return Geometry(self.wall, *(part.to(dtype) for part in parts))


def geometry(nodes: Float[Tensor, "batch along out 2"], wall: int) -> Geometry:
    """Measure cells and faces; a cell that is folded over has a volume that is not positive."""
    x = nodes.permute(3, 1, 2, 0)
    middle = x.shape[1] // 2
    x = torch.stack((x[:, : middle + 1].flip(1), x[:, middle:]), 1)
    dk, dj = x.diff(dim=K), x.diff(dim=J)
    a, b = x[:, :, 1:, 1:] - x[:, :, :-1, :-1], x[:, :, 1:, :-1] - x[:, :, :-1, 1:]
    hand = x.new_tensor([-1.0, 1.0])[:, None, None, None]  # the halves are mirror images

    volume = (hand * (a[0] * b[1] - a[1] * b[0]) / 2).contiguous()

    def faces(nx: Tensor, ny: Tensor, axis: int) -> Tensor:
        normal = hand * torch.stack((nx, ny))
        length = normal.norm(dim=0)
        ends = volume.shape[axis - 1] - 1
        first, last = volume.narrow(axis - 1, 0, 1), volume.narrow(axis - 1, ends, 1)
        before, after = torch.cat((first, volume), axis - 1), torch.cat((volume, last), axis - 1)
        width = torch.minimum(length, (before + after) / (2 * length))
        return torch.cat((normal / length, length[None], width[None]))

    free = x.new_tensor(FREE_STREAM)
    return Geometry(wall, free, volume, faces(-dj[1], dj[0], K), faces(dk[1], -dk[0], J))


def free_stream(g: Geometry) -> Float[Tensor, "4 2 k j batch"]:
    """Return the undisturbed flow in all cells, as conserved variables."""
    return conserved(g.free)[:, None, None, None, None].expand(4, *g.volume.shape).contiguous()


def _outside(g: Geometry, v: Tensor, axis: int) -> Tensor:
    """Return two ghost layers of free stream."""
    shape = [2 if a == axis else size for a, size in enumerate(v.shape)]
    return g.free[:, None, None, None, None].expand(shape)


def _behind_wall(g: Geometry, v: Tensor) -> Tensor:
    """Return two ghost layers with the velocity reflected at the wall."""
    rho, x, y, p = v[:, :, : g.wall, :2].flip(J).unbind()
    nx, ny, _, _ = g.j_faces[:, :, : g.wall, :1].unbind()
    q = 2 * (x * nx + y * ny)
    return torch.stack((rho, x - q * nx, y - q * ny, p))


def ghosted(g: Geometry, v: Float[Tensor, "4 2 k j batch"]) -> tuple[Tensor, Tensor]:
    """Return v with two ghost cells at both ends of k, and at both ends of j."""
    nose = v[:, :, :2].flip(1, K)
    cut = v[:, :, g.wall :, :2].flip(1, J)
    below = torch.cat((_behind_wall(g, v), cut), K)
    return (
        torch.cat((nose, v, _outside(g, v, K)), K),
        torch.cat((below, v, _outside(g, v, J)), J),
    )


def reconstruct(
    v: Tensor, axis: int, share: Float[Tensor, " batch"] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the states before and after each face, for v with two ghost cells at both ends.

    A cell with the differences a and b to its neighbours has the slope
    [a (b² + e) + b (a² + e)] / (a² + b² + 2 e), e = 1e-3, or only a `share` of it.
    """
    faces = v.shape[axis] - 3
    step = v.diff(dim=axis)
    square = (step * step).add_(SMOOTH)
    a, b = step.narrow(axis, 0, faces + 1), step.narrow(axis, 1, faces + 1)
    a2, b2 = square.narrow(axis, 0, faces + 1), square.narrow(axis, 1, faces + 1)
    half = (a * b2).addcmul_(b, a2).div_((a2 + b2).mul_(2))
    if share is not None:
        half.mul_(share)
    # Density and pressure at a face stay positive, however steep they are.
    room = MOST * v.narrow(axis, 1, faces + 1)[::3]
    half[::3] = torch.minimum(torch.maximum(half[::3], -room), room)
    before = v.narrow(axis, 1, faces) + half.narrow(axis, 0, faces)
    return before, v.narrow(axis, 2, faces) - half.narrow(axis, 1, faces)


def residual(
    g: Geometry, along: Tensor, out: Tensor, share: Float[Tensor, " batch"] | None = None
) -> Float[Tensor, "4 2 k j batch"]:
    """Return R from v with its ghost cells along k and out along j.

    With a `share` of the slopes below 1 it is the residual of a more viscous scheme.
    """
    k_flux = roe_flux(*reconstruct(along, K, share), g.k_faces)
    j_flux = roe_flux(*reconstruct(out, J, share), g.j_faces)
    nx, ny, length, _ = g.j_faces[:, :, : g.wall, 0].unbind()
    # Cells begin after two ghosts: pressure at the wall is carried on from the first two.
    push = length * (1.5 * out[3, :, : g.wall, 2] - 0.5 * out[3, :, : g.wall, 3])
    zero = torch.zeros_like(push)
    j_flux[:, :, : g.wall, 0] = torch.stack((zero, nx * push, ny * push, zero))
    return k_flux.diff(dim=K) + j_flux.diff(dim=J)


def density_residual(g: Geometry, r: Float[Tensor, "4 2 k j batch"]) -> Float[Tensor, " batch"]:
    """Return the root of the sum over cells of (d rho / dt)², d rho / dt = -R / V."""
    norm: Tensor = (r[0] / g.volume).flatten(0, 2).norm(dim=0)
    return norm


def nodal(g: Geometry, w: Float[Tensor, "4 2 k j batch"]) -> Float[Tensor, "batch along out 5"]:
    """Return rho, u, v, p and the Mach number at the nodes, in the order of the C-mesh.

    A node has the mean of the four cells around it; walls carry the field on linearly.
    """
    v = primitive(w)
    wall = 2 * v[:, :, : g.wall, :1] - v[:, :, : g.wall, 1:2]
    cut = v[:, :, g.wall :, :1].flip(1)
    v = torch.cat((torch.cat((wall, cut), K), v, _outside(g, v, J)[:, :, :, :1]), J)
    v = torch.cat((v[:, :, :1].flip(1), v, _outside(g, v, K)[:, :, :1]), K)
    v = (v[:, :, 1:] + v[:, :, :-1]) / 2
    v = (v[:, :, :, 1:] + v[:, :, :, :-1]) / 2
    # The trailing edge is one point with a wall on either side.
    edge = v[:, :, g.wall, 0]
    v[:, :, g.wall, 0] = (edge + edge.flip(1)) / 2
    v = torch.cat((v[:, 0, 1:].flip(1), v[:, 1]), 1)
    rho, x, y, p = v.unbind()
    mach = ((x * x + y * y) * rho / (GAMMA * p)).sqrt()
    return torch.cat((v, mach[None])).permute(3, 1, 2, 0)
