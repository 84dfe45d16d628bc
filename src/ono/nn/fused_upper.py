"""The block of the upper flow as a few GPU kernels with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ono.nn.blocks import OrthogonalBlock
from ono.nn.fused_launch import (
    CHAIN,
    SUM,
    Cut,
    add_up_all,
    ambient_precision,
    exact,
    feed_forward_back,
    long_sum,
    products_of,
    stored,
    wide,
)
from ono.nn.measure import Measure
from ono.nn.mlp import FFN


def upper_weights(block: OrthogonalBlock) -> list[Tensor]:
    """Return the weights of the products in `upper_block`."""
    (w_1, _), (w_2, _) = cast(FFN, block.ffn).layers()
    return [w_1, w_2]


def upper_block(
    block: OrthogonalBlock,
    multiplied: Sequence[Tensor],
    features: Float[Tensor, "batch points modes"],
    kernel: Float[Tensor, "*batch heads eigen eigen"],
    h: Float[Tensor, "batch *time points width"],
    measure: Measure,
) -> Float[Tensor, "batch *time points width"]:
    """Return the next h. `multiplied` are the `operands` of its `upper_weights`."""
    assert block.attention.w_v is not None
    (w_1, b_1), (w_2, b_2) = cast(FFN, block.ffn).layers()
    parameters = (
        block.norm_attention.weight,
        block.norm_attention.bias,
        block.attention.w_v.weight,
        block.norm_ffn.weight,
        block.norm_ffn.bias,
        w_1,
        b_1,
        w_2,
        b_2,
    )
    precision = ambient_precision(h.device)
    result: Tensor = _Upper.apply(  # type: ignore[no-untyped-call]
        h, features, kernel, measure.weights, multiplied, precision, *parameters
    )
    return result


class _Upper(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        features: Tensor,
        kernel: Tensor,
        weights: Tensor | None,
        multiplied: Sequence[Tensor],
        precision: str,
        *parameters: Tensor,
    ) -> Tensor:
        from ono.nn import upper_triton as kernels

        norm, shift, w_v, norm_2, shift_2, _, b_1, _, b_2 = parameters
        w_1, w_2 = multiplied
        weights = None if weights is None else weights.contiguous()
        h, features, kernel = h.contiguous(), features.contiguous(), kernel.contiguous()
        *_, points, width = h.shape
        samples, share = h[..., 0, 0].numel(), kernel.shape[-1]
        times = samples // len(features)
        cut = Cut.of(samples, points)
        weighted = {"weighted": weights is not None}
        heads = {"share": share, "width": width}
        stride = width * share if kernel.ndim == 4 else 0
        moments = h.new_empty(samples, cut.parts, width, width)
        kernels.upper_moment[cut.parts, samples](
            h, features, weights, norm, shift, moments, points, cut.steps, times,
            **weighted, **long_sum(cut.steps), width=width, exact=exact(precision),
        )  # fmt: skip
        moment = h.new_empty(samples, width, width)
        latent = h.new_empty(3, samples, share, width, dtype=torch.bfloat16)
        kernels.upper_latent[width // share, samples](
            moments, w_v, kernel, moment, latent, cut.parts, times, stride, **heads
        )
        middle, after = torch.empty_like(h), torch.empty_like(h)
        kernels.upper_out[cut.tiles, samples](
            h, features, latent, norm_2, shift_2, w_1, b_1, w_2, b_2,
            w_2.stride(0), middle, after, points, times,
            **CHAIN, **heads, precision=precision, wide=wide(precision),
        )  # fmt: skip
        ctx.save_for_backward(
            h, features, kernel, weights, moment, latent, middle,
            norm, shift, w_v, norm_2, shift_2, b_1, w_1, w_2,
        )  # fmt: skip
        ctx.options = cut, samples, times, stride, precision
        return after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from ono.nn import upper_triton as kernels
        from ono.nn.fused_triton import moments_within_heads

        (
            h, features, kernel, weights, moment, latent, middle,
            norm, shift, w_v, norm_2, shift_2, b_1, w_1, w_2,
        ) = ctx.saved_tensors  # fmt: skip
        cut, samples, times, stride, precision = ctx.options
        *_, points, width = h.shape
        share = kernel.shape[-1]
        rows = samples * points
        weighted = {"weighted": weights is not None}
        heads = {"share": share, "width": width}
        left, right = (h.new_empty(2, rows, width, dtype=stored(precision)) for _ in range(2))
        d_middle, norms_2 = feed_forward_back(
            gradients[0].contiguous(), middle, (norm_2, shift_2, w_1, b_1, w_2), left, right,
            precision,
        )  # fmt: skip
        d_latents = h.new_empty(samples, cut.parts, share, width)
        moments_within_heads[cut.parts, samples](
            features, d_middle, None, d_latents, points, cut.steps, times, 1.0,
            weighted=False, **SUM, **heads, precision=wide(precision),
        )  # fmt: skip
        d_moment = h.new_empty(3, samples, width, width, dtype=torch.bfloat16)
        d_rest = h.new_empty(samples, width + share, width)
        kernels.upper_latent_backward[width // share, samples](
            d_latents, moment, w_v, kernel, d_moment, d_rest, cut.parts, times, stride,
            at_once=16, **heads,
        )  # fmt: skip
        d_h, d_features = torch.empty_like(h), torch.empty_like(h)
        norms = h.new_empty(samples * cut.tiles, 2, width)
        kernels.upper_moment_backward[cut.tiles, samples](
            d_moment, d_middle, h, features, latent, weights, norm, shift, d_h, d_features, norms,
            points, times, **weighted, **CHAIN, **heads, wide=wide(precision),
        )  # fmt: skip
        products = products_of(left, right, 0, precision)
        total, (d_norm, d_shift), (d_norm_2, d_shift_2), rest = add_up_all(
            products, norms, norms_2, d_rest
        )
        d_w_1, d_w_2, (d_b_1, d_b_2) = total.split((width, width, 2))
        if times > 1:
            d_features = d_features.sum(1)
        if stride:  # every sample has its own kernel
            each = d_rest[:, width:].reshape(-1, times, width // share, share, share)
            d_kernel = each.sum(1)
        else:
            d_kernel = rest[width:].view(-1, share, share)
        return (
            d_h, d_features, d_kernel.double(), None, None, None,
            d_norm, d_shift, rest[:width], d_norm_2, d_shift_2,
            d_w_1, d_b_1, d_w_2, d_b_2,
        )  # fmt: skip
