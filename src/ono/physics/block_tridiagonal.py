"""Cholesky factorisation of symmetric positive definite block-tridiagonal matrices, in batches.

With D_k on the diagonal and C_k below it, A = L L^T where L has L_k on its diagonal and X_k below:

    L_k L_k^T = D_k - X_{k-1} X_{k-1}^T,    X_k = C_k L_k^-T.

Often only the first m of the n unknowns of a block meet the block before, so that C_k has m rows.
D_k over C_k makes one panel of n + m rows: column block k of A from its diagonal down. A batch of
Cholesky factorisations and triangular solves is right on every device; one of LU is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ono.errors import ShapeError


@dataclass(frozen=True, slots=True)
class Factor:
    """The factor L of each matrix of a batch; NaN where a matrix was not positive definite."""

    diagonal: tuple[Float[Tensor, "batch n n"], ...]  # L_k
    below: tuple[Float[Tensor, "batch m n"], ...]  # X_k, one fewer

    def solve(self, b: Float[Tensor, "batch unknowns"]) -> Float[Tensor, "batch unknowns"]:
        """Return x with A x = b: forward with L, then back with L^T."""
        size, meet = self.diagonal[0].shape[-1], self.below[0].shape[-2] if self.below else 0
        blocks = len(self.diagonal)
        if b.shape[-1] != blocks * size:
            raise ShapeError(f"expected {blocks} blocks of {size} unknowns, got {b.shape[-1]}")
        x = b.reshape(len(b), blocks, size, 1).clone()
        for k, lower in enumerate(self.diagonal):
            if k > 0:
                x[:, k, :meet] -= self.below[k - 1] @ x[:, k - 1]
            x[:, k] = torch.linalg.solve_triangular(lower, x[:, k], upper=False)
        for k in reversed(range(blocks)):
            if k + 1 < blocks:
                x[:, k] -= self.below[k].mT @ x[:, k + 1, :meet]
            x[:, k] = torch.linalg.solve_triangular(self.diagonal[k].mT, x[:, k], upper=True)
        return x.reshape_as(b)


def factor(panels: Float[Tensor, "batch blocks rows n"]) -> Factor:
    """Factor the matrices given by their panels, D_k in the first n rows and C_k in the rest.

    Of D_k only the lower triangle is read; C of the last panel is not used.

    >>> panels = torch.tensor([[[[4.0], [2.0]], [[5.0], [0.0]]]])  # the matrix [[4, 2], [2, 5]]
    >>> factor(panels).solve(torch.tensor([[8.0, 12.0]])).tolist()
    [[1.0, 2.0]]
    """
    blocks, rows, size = panels.shape[1:]
    meet = rows - size
    if not 0 <= meet <= size or blocks < 1:
        raise ShapeError(f"panels need n to 2n rows for n = {size} columns, got {rows}")
    diagonal: list[Tensor] = []
    below: list[Tensor] = []
    for k in range(blocks):
        d = panels[:, k, :size]
        if k > 0:
            d = d.clone()
            d[:, :meet, :meet] -= below[-1] @ below[-1].mT
        lower, failed = torch.linalg.cholesky_ex(d)
        # What is left of a failed factorisation looks like a factor; let nobody use it.
        lower.masked_fill_((failed != 0)[:, None, None], torch.nan)
        diagonal.append(lower)
        if k + 1 < blocks:
            below.append(
                torch.linalg.solve_triangular(lower, panels[:, k, size:].mT, upper=False).mT
            )
    return Factor(tuple(diagonal), tuple(below))
