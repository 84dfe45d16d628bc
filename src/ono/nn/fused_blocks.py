"""Blocks of both flows as a few GPU kernels each, with gradients.

They compute what `NNBlock` and `OrthogonalBlock` compute, which stay the definition and are what
tests compare with. The kernels need Triton, which comes with torch for CUDA.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ono.nn.blocks import NNBlock, OrthogonalBlock
from ono.nn.measure import Measure
from ono.nn.mlp import FFN

WIDTHS = (64, 128)
"""Channels for which a tile of points and a weight fit a multiprocessor."""

# Measured on an H200. Chains of products hold tiles of points, sums over points hold a matrix.
_CHAIN = {"tile": 64, "num_warps": 4, "num_stages": 1}
_LONG_CHAIN = {"tile": 64, "num_warps": 8, "num_stages": 1}
_SUM = {"tile": 64, "num_warps": 8, "num_stages": 2}
# Programs that keep an H200 busy; results of so many are added afterwards, so not many more.
_PROGRAMS = 264
_MOST_PARTS = 64
_MOST_ROWS = 512


def available() -> bool:
    """Say whether the kernels can be compiled here."""
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


def ambient_precision(device: torch.device) -> str:
    """Return how products are to be computed, as autocast and torch's float32 setting say.

    Products in float32 become several of bfloat16 numbers: six keep its digits, three are still
    better than TF32.
    """
    if torch.is_autocast_enabled(device.type):
        return "bf16"
    return "bf16x6" if torch.get_float32_matmul_precision() == "highest" else "bf16x3"


def operands(weights: Sequence[Tensor], precision: str) -> list[Tensor]:
    """Return weights as the kernels multiply with them: rounded once, not by every program."""
    if precision != "bf16":
        return [weight.detach() for weight in weights]
    flat = torch.cat([weight.detach().flatten() for weight in weights]).bfloat16()
    parts = flat.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


def lower_weights(block: NNBlock, w_q: nn.Linear) -> list[Tensor]:
    """Return the weights of the products in `lower_block`."""
    (w_1, _), (w_2, _) = block.ffn.layers()
    return [block.attention.qkv.weight, block.attention.out.weight, w_1, w_2, w_q.weight]


def upper_weights(block: OrthogonalBlock) -> list[Tensor]:
    """Return the weights of the products in `upper_block`."""
    (w_1, _), (w_2, _) = cast(FFN, block.ffn).layers()
    return [w_1, w_2]


def _exact(precision: str) -> str:
    """Return how covariances and moments are computed: with the digits of float32, always."""
    return "ieee" if precision == "ieee" else "bf16x6"


def _wide(precision: str) -> str:
    """Return how products between moments and points are computed."""
    return "bf16x3" if precision == "bf16" else precision


class _Cut(NamedTuple):
    """How the points of samples are cut: tiles of chains, and parts of so many steps of sums."""

    tiles: int
    parts: int
    steps: int

    @classmethod
    def of(cls, samples: int, points: int) -> _Cut:
        blocks = -(-points // _SUM["tile"])
        parts = min(max(_PROGRAMS // samples, 1), _MOST_PARTS, blocks)
        steps = -(-blocks // parts)
        return cls(-(-points // _CHAIN["tile"]), -(-blocks // steps), steps)


def lower_block(
    block: NNBlock,
    w_q: nn.Linear,
    multiplied: Sequence[Tensor],
    g: Float[Tensor, "batch points width"],
    measure: Measure,
    share: int,
) -> tuple[
    Float[Tensor, "batch points width"],
    Float[Tensor, "batch points modes"],
    Float[Tensor, "batch parts share modes"],
]:
    """Return the next g, ĝ, and <ĝ, ĝ> within heads, in parts to be added.

    `multiplied` are the `operands` of its `lower_weights`.
    """
    attention = block.attention
    (w_1, b_1), (w_2, b_2) = block.ffn.layers()
    parameters = (
        block.norm_attention.weight,
        block.norm_attention.bias,
        attention.qkv.weight,
        attention.out.weight,
        attention.out.bias,
        block.norm_ffn.weight,
        block.norm_ffn.bias,
        w_1,
        b_1,
        w_2,
        b_2,
        w_q.weight,
        w_q.bias,
    )
    precision = ambient_precision(g.device)
    result: tuple[Tensor, Tensor, Tensor] = _Lower.apply(  # type: ignore[no-untyped-call]
        g, measure.weights, multiplied, share, precision, *parameters
    )
    return result


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


class _Lower(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        weights: Tensor | None,
        multiplied: Sequence[Tensor],
        share: int,
        precision: str,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        from ono.nn import lower_triton as kernels
        from ono.nn.fused_triton import moments_within_heads

        norm, shift, _, _, b_out, norm_2, shift_2, _, b_1, _, b_2, _, b_q = parameters
        w_qkv, w_out, w_1, w_2, w_q = multiplied
        g, weights = g.contiguous(), None if weights is None else weights.contiguous()
        batch, points, width = g.shape
        cut = _Cut.of(batch, points)
        weighted = {"weighted": weights is not None}
        heads = {"share": share, "width": width}
        q, k, v = (torch.empty_like(g, dtype=_stored(precision)) for _ in range(3))
        kernels.lower_in[cut.tiles, batch](
            g, norm, shift, w_qkv, q, k, v, points, **_LONG_CHAIN, width=width, precision=precision
        )
        peaks, totals = (g.new_empty(batch, cut.parts, width) for _ in range(2))
        contexts = g.new_empty(batch, cut.parts, share, width)
        kernels.lower_context[cut.parts, batch](
            k, v, weights, peaks, totals, contexts, points, cut.steps,
            **weighted, **_SUM, **heads, precision=precision,
        )  # fmt: skip
        peak, total = (g.new_empty(batch, width) for _ in range(2))
        context = g.new_empty(batch, share, width)
        at_once = 1 << (cut.parts - 1).bit_length()
        kernels.lower_merge[width // share, batch](
            peaks, totals, contexts, peak, total, context, cut.parts, parts_at_once=at_once, **heads
        )
        middle, after, features = (torch.empty_like(g) for _ in range(3))
        kernels.lower_out[cut.tiles, batch](
            g, q, context, w_out, b_out, norm_2, shift_2, w_1, b_1, w_2, b_2, w_q, b_q,
            middle, after, features, points, 1 / math.sqrt(share),
            **_short_chain(precision), **heads, precision=precision,
        )  # fmt: skip
        # Without weights all points count alike, which is a factor outside of the sum.
        grams = g.new_empty(batch, cut.parts, share, width)
        moments_within_heads[cut.parts, batch](
            features, features, weights, grams, points, cut.steps, 1,
            **weighted, **_SUM, **heads, precision=_exact(precision),
        )  # fmt: skip
        if weights is None:
            grams /= points
        ctx.save_for_backward(
            g, weights, q, k, v, peak, total, context, middle, after, features,
            norm, shift, norm_2, shift_2, b_1, *multiplied,
        )  # fmt: skip
        ctx.options = cut, share, precision
        return after, features, grams

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from ono.nn import lower_triton as kernels

        (
            g, weights, q, k, v, peak, total, context, middle, after, features,
            norm, shift, norm_2, shift_2, b_1, w_qkv, w_out, w_1, w_2, w_q,
        ) = ctx.saved_tensors  # fmt: skip
        cut, share, precision = ctx.options
        d_after, d_features, d_grams = gradients
        batch, points, width = g.shape
        rows = batch * points
        weighted = {"weighted": weights is not None}
        heads = {"share": share, "width": width}
        # All parts have the same gradient: they are only added. Both sides of ĝᵀĝ meet ĝ.
        d_gram = d_grams[:, 0].unflatten(-1, (-1, share))
        d_gram = (d_gram + d_gram.transpose(1, 3)).contiguous()
        d_x, d_g = torch.empty_like(g), torch.empty_like(g)
        left = g.new_empty(7, rows, width, dtype=_stored(precision))
        right = g.new_empty(5, rows, width, dtype=_stored(precision))
        kernels.lower_features_backward[cut.tiles, batch](
            d_after.contiguous(), d_features.contiguous(), d_gram, weights, after, features, w_q,
            d_x, left, right, points, rows,
            **weighted, **_LONG_CHAIN, **heads, precision=precision, wide=_wide(precision),
        )  # fmt: skip
        d_middle, norms_2 = _feed_forward_backward(
            d_x, middle, (norm_2, shift_2, w_1, b_1, w_2), left[4:6], right[2:4], precision
        )
        d_contexts = g.new_empty(batch, cut.tiles, share, width)
        kernels.lower_mix_backward[cut.tiles, batch](
            d_middle, q, context, w_out, d_contexts, left, right, points, rows,
            1 / math.sqrt(share), **_LONG_CHAIN, **heads, precision=precision,
        )  # fmt: skip
        d_context, mean = torch.empty_like(context), torch.empty_like(peak)
        kernels.lower_merge_backward[width // share, batch](
            d_contexts, context, total, d_context, mean, cut.tiles, at_once=16, **heads
        )
        norms = g.new_empty(batch * cut.tiles, 2, width)
        kernels.lower_in_backward[cut.tiles, batch](
            d_middle, d_context, weights, g, k, v, peak, mean, norm, shift, w_qkv,
            d_g, norms, left, right, points, rows, **weighted, **_LONG_CHAIN, **heads,
            precision=precision,
        )  # fmt: skip
        products = _weight_gradients(left, right, 2, precision)
        total, (d_norm, d_shift), (d_norm_2, d_shift_2) = _add_up(products, norms, norms_2)
        matrices, biases = total[:, :width], total[:, width]
        return (
            d_g, None, None, None, None,
            d_norm, d_shift, matrices[:3].reshape(-1, width), matrices[3], biases[3],
            d_norm_2, d_shift_2, matrices[4], biases[4], matrices[5], biases[5],
            matrices[6], biases[6],
        )  # fmt: skip


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
        cut = _Cut.of(samples, points)
        weighted = {"weighted": weights is not None}
        heads = {"share": share, "width": width}
        stride = width * share if kernel.ndim == 4 else 0
        moments = h.new_empty(samples, cut.parts, width, width)
        kernels.upper_moment[cut.parts, samples](
            h, features, weights, norm, shift, moments, points, cut.steps, times,
            **weighted, **_SUM, width=width, exact=_exact(precision),
        )  # fmt: skip
        moment = h.new_empty(samples, width, width)
        latent = h.new_empty(3, samples, share, width, dtype=torch.bfloat16)
        kernels.upper_latent[width // share, samples](
            moments, w_v, kernel, moment, latent, cut.parts, times, stride, **heads
        )
        middle, after = torch.empty_like(h), torch.empty_like(h)
        kernels.upper_out[cut.tiles, samples](
            h, features, latent, norm_2, shift_2, w_1, b_1, w_2, b_2, middle, after, points, times,
            **_short_chain(precision), **heads, precision=precision, wide=_wide(precision),
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
        # Where there is work for all, programs of twice the size waste less of it.
        chain = _LONG_CHAIN if rows < _PROGRAMS // 2 * 128 else {**_LONG_CHAIN, "tile": 128}
        tiles = -(-points // chain["tile"])
        left, right = (h.new_empty(2, rows, width, dtype=_stored(precision)) for _ in range(2))
        d_middle, norms_2 = _feed_forward_backward(
            gradients[0].contiguous(), middle, (norm_2, shift_2, w_1, b_1, w_2), left, right,
            precision,
        )  # fmt: skip
        d_latents = h.new_empty(samples, cut.parts, share, width)
        moments_within_heads[cut.parts, samples](
            features, d_middle, None, d_latents, points, cut.steps, times,
            weighted=False, **_SUM, **heads, precision=_wide(precision),
        )  # fmt: skip
        d_moment = h.new_empty(3, samples, width, width, dtype=torch.bfloat16)
        d_rest = h.new_empty(samples, width + share, width)
        kernels.upper_latent_backward[width // share, samples](
            d_latents, moment, w_v, kernel, d_moment, d_rest, cut.parts, times, stride,
            at_once=16, **heads,
        )  # fmt: skip
        d_h, d_features = torch.empty_like(h), torch.empty_like(h)
        norms = h.new_empty(samples * tiles, 2, width)
        kernels.upper_moment_backward[tiles, samples](
            d_moment, d_middle, h, features, latent, weights, norm, shift, d_h, d_features, norms,
            points, times, **weighted, **chain, **heads, wide=_wide(precision),
        )  # fmt: skip
        products = _weight_gradients(left, right, 0, precision)
        total, (d_norm, d_shift), (d_norm_2, d_shift_2), rest = _add_up(
            products, norms, norms_2, d_rest
        )
        matrices, biases = total[:, :width], total[:, width]
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
            matrices[0], biases[0], matrices[1], biases[1],
        )  # fmt: skip


def _short_chain(precision: str) -> dict[str, int]:
    """Return the size of programs with few tiles to hold; split numbers make them many."""
    return _CHAIN if precision == "bf16" else _LONG_CHAIN


def _stored(precision: str) -> torch.dtype:
    """Return the type of what forward keeps for backward, and backward for the weights."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _feed_forward_backward(
    d_after: Tensor,
    before: Tensor,
    parameters: tuple[Tensor, ...],
    left: Tensor,
    right: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """Return the gradient before the FFN of a block, and that of its norm in parts to be added."""
    from ono.nn.feed_forward_triton import feed_forward_backward

    rows, width = left.shape[1:]
    tiles = -(-rows // _LONG_CHAIN["tile"])
    d_before, norms = torch.empty_like(before), before.new_empty(tiles, 2, width)
    feed_forward_backward[tiles,](
        d_after, before, *parameters, d_before, norms, left, right, rows,
        **_LONG_CHAIN, width=width, precision=precision,
    )  # fmt: skip
    return d_before, norms


def _weight_gradients(left: Tensor, right: Tensor, sharing: int, precision: str) -> Tensor:
    """Return leftᵀ right of every pair, and below it the sum of left, in parts to be added."""
    from ono.nn.fused_triton import weight_gradients

    pairs, rows, width = left.shape
    tile = _SUM["tile"]
    chunk = -(-rows // tile // max(_PROGRAMS // 2 // pairs, 1)) * tile
    chunks = -(-rows // chunk)
    out = left.new_empty(chunks, pairs, width + 1, width, dtype=torch.float32)
    weight_gradients[pairs, chunks](
        left, right, out, rows, chunk, pairs,
        sharing=sharing, tile=tile, width=width, precision=precision,
        num_warps=4 if precision == "bf16" else 8,
    )  # fmt: skip
    return out


def _add_up(*arrays: Tensor) -> list[Tensor]:
    """Return the sums of up to four arrays over their first axis, in one go."""
    from ono.nn.fused_triton import add_up

    # One program adds all rows of its columns: very many are for torch, which shares them out.
    few = [array.sum(0, keepdim=True) if len(array) > _MOST_ROWS else array for array in arrays]
    sums = [torch.empty_like(array[0]) for array in few]
    told: list[Any] = []
    for array, total in zip(few, sums, strict=True):
        told += [array, total, len(array), total.numel()]
    told += [few[0], sums[0], 0, 0] * (4 - len(few))
    width = 512
    blocks = sum(-(-total.numel() // width) for total in sums)
    add_up[blocks,](*told, at_once=16, width=width, num_warps=4)
    return sums
