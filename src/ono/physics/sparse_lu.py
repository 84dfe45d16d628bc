"""Solve element systems on the CPU, one sample at a time, by sparse LU.

All samples share one pattern: it is found once, and a sample only fills in its numbers. SuperLU
orders the columns by COLAMD; symmetric minimum degree fills in several times more here, because
the pressures have no diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Pattern:
    """The compressed columns of the matrix of free unknowns, and where element entries go."""

    free: Bool[Tensor, " unknowns"]
    kept: Int[Tensor, " kept"]  # entries of the element matrices between free unknowns
    slot: Int[Tensor, " kept"]  # their place among the non-zeros
    rows: NDArray[np.int32]
    starts: NDArray[np.int32]

    def solve(
        self,
        matrices: Float[Tensor, "batch elements local local"],
        b: Float[Tensor, "batch unknowns"],
    ) -> Float[Tensor, "batch unknowns"]:
        """Return x with A x = b on the free unknowns, 0 elsewhere; NaN where A is singular."""
        entries = matrices.new_zeros(len(b), len(self.rows))
        entries.index_add_(1, self.slot, matrices.flatten(1)[:, self.kept])
        x = torch.zeros_like(b)
        size = len(self.starts) - 1
        for k, (values, right) in enumerate(zip(entries.numpy(), b[:, self.free], strict=True)):
            matrix = scipy.sparse.csc_matrix((values, self.rows, self.starts), shape=(size, size))
            try:
                solution = scipy.sparse.linalg.splu(matrix, permc_spec="COLAMD").solve(
                    right.numpy()
                )
            except RuntimeError:  # exactly singular
                solution = np.full(size, np.nan)
            x[k, self.free] = torch.from_numpy(solution)
        return x


def pattern(unknowns: Int[Tensor, "elements local"], free: Bool[Tensor, " unknowns"]) -> Pattern:
    """Find the pattern of the matrices that couple all unknowns of an element."""
    both = free[unknowns][:, :, None] & free[unknowns][:, None, :]
    kept = both.flatten().nonzero().flatten()
    size = int(free.sum())
    number = (free.cumsum(0) - 1)[unknowns]
    place = number[:, None, :] * size + number[:, :, None]  # column by column
    places, slot = place.flatten()[kept].unique(return_inverse=True)
    starts = torch.searchsorted(places, size * torch.arange(size + 1))
    return Pattern(
        free=free,
        kept=kept,
        slot=slot,
        rows=(places % size).numpy().astype(np.int32),
        starts=starts.numpy().astype(np.int32),
    )
