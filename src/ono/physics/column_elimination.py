"""Solve Taylor-Hood systems on a strip in batches of dense matrices, for a GPU.

An element column meets its neighbours only in its outer two lines of nodes. Its middle line is
eliminated first, in all columns at once; what remains couples each line of corners (velocities
and pressures) with the next: a block-tridiagonal system of m + 1 blocks of 2 n + m + 1 unknowns.
It is eliminated from the outlet to the inlet, whose own block, pressures alone, is singular.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ono.physics import block_lu
from ono.physics.taylor_hood import Mesh


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the unknowns of a mesh go: left line, right line, middle line of each column."""

    mesh: Mesh
    slot: Int[Tensor, " entries"]  # entries of the elements of a column, in its dense matrix

    @property
    def line(self) -> int:
        """Return how many unknowns a line of corners has."""
        return 2 * self.mesh.nodes + self.mesh.side + 1

    @property
    def size(self) -> int:
        """Return how many unknowns a column has."""
        return 2 * self.line + 2 * self.mesh.nodes

    def _split(self, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return b on the lines of corners and on the lines between them."""
        n, m = self.mesh.nodes, self.mesh.side
        velocity = b[:, : 2 * n**2].unflatten(1, (n, 2 * n))
        pressure = b[:, 2 * n**2 :].unflatten(1, (m + 1, m + 1))
        return torch.cat((velocity[:, ::2], pressure), -1), velocity[:, 1::2]

    def _join(self, corners: Tensor, middle: Tensor) -> Tensor:
        n = self.mesh.nodes
        velocity = corners.new_empty(len(corners), n, 2 * n)
        velocity[:, ::2], velocity[:, 1::2] = corners[..., : 2 * n], middle
        return torch.cat((velocity.flatten(1), corners[..., 2 * n :].flatten(1)), 1)

    def solve(
        self,
        matrices: Float[Tensor, "batch elements 22 22"],
        b: Float[Tensor, "batch unknowns"],
    ) -> Float[Tensor, "batch unknowns"]:
        """Return x with A x = b; given velocities keep the value 0 that b has there."""
        mesh, line, size = self.mesh, self.line, self.size
        batch, columns = len(b), mesh.side
        dense = matrices.new_zeros(batch * columns, size**2)
        # At most two elements of a column share an entry, so no order of adding shows.
        dense.index_add_(1, self.slot, matrices.reshape(batch * columns, -1))
        dense = dense.view(batch, columns, size, size)
        held, held_middle = self._split((~mesh.free).to(b)[None])
        lines = torch.cat((held[:, :-1], held[:, 1:], held_middle), -1)
        dense.diagonal(dim1=-2, dim2=-1).add_(lines)

        outer = 2 * line
        corners, middle = self._split(b)
        right = torch.cat((dense[..., outer:, :outer], middle[..., None]), -1)
        w = block_lu.inverse(dense[..., outer:, outer:]) @ right
        change = dense[..., :outer, outer:] @ w
        left = dense[..., :outer, :outer] - change[..., :-1]
        del dense, right

        corners = corners.clone()
        corners[:, :-1] -= change[..., :line, -1]
        corners[:, 1:] -= change[..., line:, -1]
        del change
        diagonal = left.new_zeros(batch, columns + 1, line, line)
        diagonal[:, :-1] += left[..., :line, :line]
        diagonal[:, 1:] += left[..., line:, line:]
        x = block_lu.solve(diagonal, left[..., line:, :line], left[..., :line, line:], corners)
        around = torch.cat((x[:, :-1], x[:, 1:]), -1)
        between = w[..., -1] - (w[..., :-1] @ around[..., None])[..., 0]
        return self._join(x, between)


def columns(mesh: Mesh) -> Columns:
    """Number the unknowns of the elements of a column, left and right line before the middle."""
    m, n = mesh.side, mesh.nodes
    line = 2 * n + m + 1
    device = mesh.unknowns.device
    row = torch.arange(m, device=device)[:, None, None]
    start = torch.tensor([0, 2 * line, line], device=device)[:, None]
    velocity = start + 4 * row + torch.arange(6, device=device)
    begin = torch.tensor([0, line], device=device)[:, None]
    pressure = begin + 2 * n + row + torch.arange(2, device=device)
    number = torch.cat((velocity.flatten(1), pressure.flatten(1)), 1)
    slot = number[:, :, None] * (2 * line + 2 * n) + number[:, None, :]
    return Columns(mesh, slot.flatten())
