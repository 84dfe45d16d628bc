"""The pseudo-inverse of Nyström attention, by products alone."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_ALIGNED = 8
"""Rows of which tensor cores like a multiple."""


def pseudo_inverse(
    matrix: Float[Tensor, "*batch landmarks landmarks"], iterations: int
) -> Float[Tensor, "*batch landmarks landmarks"]:
    """Approximate the pseudo-inverse by a Newton-Schulz iteration of third order.

    Each matrix is scaled by its own norms, so none depends on the others of the batch.

    >>> matrix = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
    >>> pseudo_inverse(matrix, 6).diagonal().tolist()
    [0.5, 0.25]
    """
    with torch.autocast(matrix.device.type, enabled=False):
        return _inverted(matrix, iterations)


def _inverted(matrix: Tensor, iterations: int) -> Tensor:
    size = matrix.shape[-1]
    # Rows and columns of zeros stay zeros.
    missing = -size % _ALIGNED if matrix.is_cuda else 0
    flat = matrix.reshape(-1, size, size)
    if missing:
        flat = F.pad(flat, (0, missing, 0, missing))
    norm = flat.abs().sum(-1).amax(-1) * flat.abs().sum(-2).amax(-1)
    start = flat.mT / norm[:, None, None]
    inverse: Tensor = _Iterated.apply(flat, start, iterations)  # type: ignore[no-untyped-call]
    return inverse[:, :size, :size].reshape(matrix.shape)


class _Iterated(torch.autograd.Function):
    """X ← ¼ X (13 - P (15 - P (7 - P))) with P = M X, which is computed anew each time.

    That keeps rounding from piling up: powers of M Mᵀ alone would do, with two fifths of the
    products and ten to twenty times the error. Written out, as autograd takes twice the operations.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, inverse: Tensor, iterations: int) -> Tensor:
        kept: list[Tensor] = []
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        fifteen, last = 15 * identity, 3.25 * identity
        for _ in range(iterations):
            product = matrix @ inverse
            inner = torch.sub(fifteen, product, alpha=7).baddbmm_(product, product)
            factor = torch.baddbmm(last, product, inner, alpha=-0.25)
            if any(ctx.needs_input_grad):
                kept += [inverse, product, inner, factor]
            inverse = inverse @ factor
        ctx.save_for_backward(matrix, *kept)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        matrix, *kept = ctx.saved_tensors
        d_matrix, d_inverse = torch.zeros_like(matrix), gradients[0]
        while kept:
            *kept, inverse, product, inner, factor = kept
            d_factor = inverse.mT @ d_inverse
            d_inner = torch.baddbmm(d_factor, product.mT, d_factor, beta=0, alpha=-0.25)
            d_product = torch.baddbmm(d_inner, d_factor, inner.mT, beta=-7, alpha=-0.25)
            d_product.baddbmm_(d_inner, product.mT).baddbmm_(product.mT, d_inner)
            d_matrix.baddbmm_(d_product, inverse.mT)
            d_inverse = (d_inverse @ factor.mT).baddbmm_(matrix.mT, d_product)
        return d_matrix, d_inverse, None
