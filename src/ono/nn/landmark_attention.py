"""Softmax attention between many points and few landmarks."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ono.nn.fused_landmark_attention import can_attend, fused_landmark_attention
from ono.nn.softmax_attention import softmax_attention


def landmark_attention(
    q: Float[Tensor, "batch heads queries share"],
    k: Float[Tensor, "batch heads keys share"],
    v: Float[Tensor, "batch heads keys share"],
    bias: Float[Tensor, "batch 1 1 keys"] | None,
    *,
    kernels: bool = True,
) -> Float[Tensor, "batch heads queries share"]:
    """Return softmax(q kᵀ / sqrt(share) + bias) v; the bias gets no gradient.

    On a GPU torch's fused attention is slow with few queries or few keys: there are `kernels` for
    at most 64 of them. In float32 it is slow always. With some more landmarks on one side the map
    between both sides fits memory for a moment, and products with it are quick.

    >>> q, k = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 2, 2)
    >>> landmark_attention(q, k, torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), None)[0, 0, 0].tolist()
    [2.0, 3.0]
    """
    if kernels and can_attend(q, k):
        return fused_landmark_attention(q, k, v, bias)
    rounded = torch.is_autocast_enabled(q.device.type)
    if not q.is_cuda or q.dtype != torch.float32 or rounded:
        return softmax_attention(q, k, v, bias)
    mixed: Tensor = ThroughMap.apply(q, k, v, bias)  # type: ignore[no-untyped-call]
    return mixed


class ThroughMap(torch.autograd.Function):
    """Attention by its map, which is made again on the way back rather than kept."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Mix the values."""
        mixed = _map(q, k, bias) @ v
        ctx.save_for_backward(q, k, v, bias, mixed)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys and values."""
        q, k, v, bias, mixed = ctx.saved_tensors
        (d_mixed,) = gradients
        shares = _map(q, k, bias)
        d_v = shares.mT @ d_mixed
        mean = (d_mixed * mixed).sum(-1, keepdim=True)
        d_logits = (d_mixed @ v.mT).sub_(mean).mul_(shares)
        scale = 1 / math.sqrt(q.shape[-1])
        return (d_logits @ k) * scale, (d_logits.mT @ q) * scale, d_v, None


def _map(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    logits = (q / math.sqrt(q.shape[-1])) @ k.mT
    if bias is not None:
        logits += bias
    return logits.softmax(-1)
