"""Softmax attention of every query to every key, as torch computes it."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ono.device import own_products

# With fewer queries torch takes tiles of at most 64, and a product for each.
_LARGE_TILES = 768
# From so many queries on cuDNN's kernels are tried before torch's: with 16641 points and 8 heads of
# 16 they take half the time on an H200.
_LONG = 4096
_QUICKEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_CHANNELS = 8
"""How many channels of a head these kernels take together."""
_NOTHING = -3e4
"""A bias that leaves nothing of a key, and is finite."""


def softmax_attention(
    q: Float[Tensor, "batch heads queries share"],
    k: Float[Tensor, "batch heads keys share"],
    v: Float[Tensor, "batch heads keys share"],
    bias: Float[Tensor, "batch 1 1 keys"] | None,
) -> Float[Tensor, "batch heads queries share"]:
    """Return softmax(q kᵀ / sqrt(share) + bias) v; the bias, in float32 at best, gets no gradient.

    >>> q, k = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 2, 2)
    >>> softmax_attention(q, k, torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), None)[0, 0, 0].tolist()
    [2.0, 3.0]
    """
    if _in_small_tiles(q):
        mixed: Tensor = small_tiles(q, k, v, bias)[0]
        return mixed
    if q.is_cuda and q.dtype == torch.bfloat16 and q.shape[-2] >= _LONG:
        return quickest(q, k, v, bias)
    rounded = None if bias is None else bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=rounded)


def quickest(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Return the attention of whichever kernel is the quickest; none of the quick takes a bias.

    The bias becomes two channels of k, where q is one: the second holds what the first has rounded
    away, and their products are added in float32.
    """
    share, scale = q.shape[-1], q.shape[-1] ** -0.5
    if bias is not None:
        wanted = bias.clamp(min=_NOTHING).mT.expand(*k.shape[:-1], 1) / scale
        first = wanted.to(k.dtype)
        rest = (wanted - first).to(k.dtype)
        padding = (0, _CHANNELS - 2)
        k = F.pad(torch.cat([k, first, rest], -1), padding)
        q = F.pad(F.pad(q, (0, 2), value=1.0), padding)
        v = F.pad(v, (0, _CHANNELS))
    with sdpa_kernel(_QUICKEST_FIRST, set_priority=True):
        mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
    return mixed[..., :share]


def _in_small_tiles(q: Tensor) -> bool:
    """Say whether torch would ask oneDNN for many small products, which takes long to begin one."""
    small = q.device.type == "cpu" and q.dtype == torch.float32 and q.shape[-2] < _LARGE_TILES
    return small and _one_dnn_is_asked()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _one_dnn_is_asked() -> bool:
    return torch.get_float32_matmul_precision() == "medium"


def _on_cpu(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, attn_mask=bias
    )
    return found


def _back_on_cpu(
    d_mixed: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mixed: Tensor,
    level: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor]
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_mixed, q, k, v, mixed, level, 0.0, False, attn_mask=bias
    )
    return found


# Operators of their own, which torch.compile takes as they are.
@torch.library.custom_op(
    "ono::attention_in_small_tiles",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? bias) -> (Tensor, Tensor)",
)
def small_tiles(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the attention of torch by products of its own, and the logarithms of its sums."""
    with own_products():
        return _on_cpu(q, k, v, bias)


@torch.library.custom_op(
    "ono::attention_in_small_tiles_backward",
    mutates_args=(),
    schema="(Tensor d_mixed, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor mixed,"
    " Tensor level) -> (Tensor, Tensor, Tensor)",
)
def small_tiles_backward(
    d_mixed: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mixed: Tensor,
    level: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values."""
    with own_products():
        return _back_on_cpu(d_mixed, q, k, v, bias, mixed, level)


def _remember(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, d_mixed: Tensor, d_level: Tensor) -> tuple[Tensor | None, ...]:
    return *small_tiles_backward(d_mixed, *ctx.saved_tensors), None


small_tiles.register_fake(_on_cpu)
small_tiles_backward.register_fake(_back_on_cpu)
torch.library.register_autograd(small_tiles, _backward, setup_context=_remember)
