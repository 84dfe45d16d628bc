"""Softmax attention of every query to every key, as torch computes it."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ono.device import own_products

# With fewer queries torch takes tiles of at most 64, and a product for each.
_LARGE_TILES = 768


def softmax_attention(
    q: Float[Tensor, "batch heads queries share"],
    k: Float[Tensor, "batch heads keys share"],
    v: Float[Tensor, "batch heads keys share"],
    bias: Float[Tensor, "batch 1 1 keys"] | None,
) -> Float[Tensor, "batch heads queries share"]:
    """Return softmax(q kᵀ / sqrt(share) + bias) v; the bias gets no gradient.

    >>> q, k = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 2, 2)
    >>> softmax_attention(q, k, torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), None)[0, 0, 0].tolist()
    [2.0, 3.0]
    """
    if _in_small_tiles(q):
        mixed: Tensor = _InSmallTiles.apply(q, k, v, bias)  # type: ignore[no-untyped-call]
        return mixed
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def _in_small_tiles(q: Tensor) -> bool:
    """Say whether torch would ask oneDNN for many small products."""
    if torch.compiler.is_compiling() or q.is_cuda or q.dtype != torch.float32:
        return False
    return q.shape[-2] < _LARGE_TILES and torch.get_float32_matmul_precision() == "medium"


class _InSmallTiles(torch.autograd.Function):
    """The attention of torch with products of its own: oneDNN takes longer to begin small ones."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Mix the values, with a history of its own."""
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        with torch.enable_grad(), own_products():
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        ctx.sources, ctx.mixed = (q, k, v), mixed
        return mixed.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys and values."""
        with own_products():
            found = torch.autograd.grad(ctx.mixed, ctx.sources, gradients[0])
        return *found, None
