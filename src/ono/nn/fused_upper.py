"""The block of the upper flow as a few GPU kernels there and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.nn.blocks import OrthogonalBlock
from ono.nn.fused_feed_forward import feed_forward_back
from ono.nn.fused_form import Form
from ono.nn.fused_launch import CHAIN, SUM, Cut, Setting, exact, long_sum, stored, wide
from ono.nn.fused_owed import Behind, Owed
from ono.nn.mlp import FFN


def upper_weights(block: OrthogonalBlock) -> list[Tensor]:
    """Return the weights of the products of a block, which become its `operands`."""
    (w_1, _), (w_2, _) = cast(FFN, block.ffn).layers()
    return [w_1, w_2]


def upper_parameters(block: OrthogonalBlock) -> list[Tensor]:
    """Return all parameters of a block but μ and w_Q, in the order of their gradients."""
    norm = block.norm_attention
    assert isinstance(norm, nn.LayerNorm)
    assert block.attention.w_v is not None
    (w_1, b_1), (w_2, b_2) = cast(FFN, block.ffn).layers()
    return [
        norm.weight,
        norm.bias,
        block.attention.w_v.weight,
        block.norm_ffn.weight,
        block.norm_ffn.bias,
        w_1,
        b_1,
        w_2,
        b_2,
    ]


class UpperKept(NamedTuple):
    """What the way back needs of the way there; h may have times, ĝ and its kernel have none."""

    h: Tensor
    features: Tensor
    kernel: Tensor
    moment: Tensor
    mean: Tensor
    latent: Tensor
    middle: Tensor


def upper_forward(
    h: Float[Tensor, "batch *time points width"],
    features: Float[Tensor, "batch points modes"],
    kernel: Float[Tensor, "groups heads eigen eigen"],
    parameters: Sequence[Tensor],
    multiplied: Sequence[Tensor],
    setting: Setting,
) -> tuple[UpperKept, Float[Tensor, "batch *time points width"]]:
    """Return the next h. There is one kernel for all samples, or one for each."""
    from ono.nn import upper_triton as kernels

    weights, share, precision, _ = setting
    norm, shift, w_v, norm_2, shift_2, _, b_1, _, b_2 = parameters
    w_1, w_2 = multiplied
    h = h.contiguous()
    *_, points, width = h.shape
    samples = h[..., 0, 0].numel()
    times = samples // len(features)
    modes = features.shape[-1]
    cut = Cut.of(samples, points)
    weighted = {"weighted": weights is not None}
    heads = {"share": share, "modes": modes, "width": width}
    moments = h.new_empty(samples, cut.parts, modes, width)
    means = h.new_empty(samples, cut.parts, modes)
    kernels.upper_moment[cut.parts, samples](
        h, features, weights, moments, means, points, cut.steps, times,
        **weighted, **long_sum(cut.steps, h.device), modes=modes, width=width,
        exact=exact(precision),
    )  # fmt: skip
    moment, mean = h.new_empty(samples, modes, width), h.new_empty(samples, modes)
    latent = h.new_empty(3, samples, share, width, dtype=torch.bfloat16)
    kernels.upper_latent[width // share, samples](
        moments, means, norm, shift, w_v, kernel, moment, mean, latent, cut.parts, times,
        _stride(kernel), **heads,
    )  # fmt: skip
    middle, after = torch.empty_like(h), torch.empty_like(h)
    form = Form.of(samples * cut.tiles, points, width, precision, h.device)
    kernels.upper_out[cut.tiles, samples](
        form.tiles(h), form.tiles(features), latent, norm_2, shift_2, form.weight(w_1), b_1,
        form.weight(w_2), b_2, w_2.stride(0), form.tiles(middle), form.tiles(after), points, times,
        **CHAIN, **(form.options if modes < width else {}), **heads, precision=precision,
        wide=wide(precision),
    )  # fmt: skip
    return UpperKept(h, features, kernel, moment, mean, latent, middle), after


def upper_backward(
    kept: UpperKept,
    d_after: Float[Tensor, "batch *time points width"],
    parameters: Sequence[Tensor],
    multiplied: Sequence[Tensor],
    setting: Setting,
) -> tuple[Tensor, Tensor, Tensor, Owed]:
    """Return the gradients of h, of ĝ, of its kernel, and what those of the parameters come from.

    That of the kernel comes in parts to be added, from every sample, time and share of channels.
    """
    from ono.nn import upper_triton as kernels
    from ono.nn.fused_triton import moments_within_heads

    weights, share, precision, _ = setting
    h, features, kernel, moment, mean, latent, middle = kept
    norm, shift, w_v, norm_2, shift_2, own_1, b_1, *_ = parameters
    w_1, w_2 = multiplied
    *_, points, width = h.shape
    samples = h[..., 0, 0].numel()
    times = samples // len(features)
    modes = features.shape[-1]
    cut = Cut.of(samples, points)
    rows = samples * points
    weighted = {"weighted": weights is not None}
    heads = {"share": share, "modes": modes, "width": width}
    left, right = (h.new_empty(2, rows, width, dtype=stored(precision)) for _ in range(2))
    d_middle = feed_forward_back(
        d_after.contiguous(), middle, (norm_2, shift_2, w_1, b_1, w_2), left, right, precision
    )
    d_latents = h.new_empty(samples, cut.parts, share, width)
    moments_within_heads[cut.parts, samples](
        features, d_middle, None, d_latents, points, cut.steps, times, 1.0,
        weighted=False, **SUM, **heads, precision=wide(precision),
    )  # fmt: skip
    pieces = width // modes
    if pieces == 1:
        d_moment = h.new_empty(3, samples, modes, width, dtype=torch.bfloat16)
    else:
        d_moment = h.new_empty(samples, pieces, modes, width)
    d_w_v = h.new_empty(samples, width, width)
    d_kernels = h.new_empty(samples * pieces, *kernel.shape[1:])
    norms = h.new_empty(samples * (width // share), 2, width)
    kernels.upper_latent_backward[width // share, samples](
        d_latents, moment, mean, norm, shift, w_v, kernel, d_moment, norms, d_w_v, d_kernels,
        cut.parts, times, _stride(kernel), at_once=16, **heads,
    )  # fmt: skip
    d_h, d_features = torch.empty_like(h), h.new_empty(*h.shape[:-1], modes)
    tiles = Form.of(samples * cut.tiles, points, width, precision, h.device).tiles
    kernels.upper_moment_backward[cut.tiles, samples](
        d_moment, tiles(d_middle), tiles(h), tiles(features), latent, weights, norm, shift,
        tiles(d_h), tiles(d_features), points, times,
        **weighted, **CHAIN, **heads, wide=wide(precision),
    )  # fmt: skip
    if h.ndim == 4:  # an axis of times, if only for one
        d_features = d_features.sum(1)
    behind = (Behind(0, own_1, norm_2, shift_2),)
    return d_h, d_features, d_kernels, Owed(left, right, 0, (norms, d_w_v), behind)


def upper_gradients(owed: Owed, precision: str) -> list[Tensor]:
    """Return the gradients of the parameters of a block."""
    products, (d_b_1, d_b_2), ((d_norm_2, d_shift_2),), rest = owed.settled(precision)
    (d_norm, d_shift), d_w_v = rest
    d_w_1, d_w_2 = products.chunk(2)
    return [d_norm, d_shift, d_w_v, d_norm_2, d_shift_2, d_w_1, d_b_1, d_w_2, d_b_2]


def _stride(kernel: Tensor) -> int:
    """Return how far apart the kernels of two samples are: they share one if there is only one."""
    return kernel.stride(0) if len(kernel) > 1 else 0
