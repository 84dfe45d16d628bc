"""The NN block of the lower flow, and ĝ behind it, as a few GPU kernels there and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.nn.attention import Attention
from ono.nn.blocks import NNBlock
from ono.nn.fused_attended import attended, own_parameters
from ono.nn.fused_feed_forward import feed_forward_back
from ono.nn.fused_form import Form
from ono.nn.fused_interlude import Interlude, interlude_backward
from ono.nn.fused_launch import CHAIN, SUM, Cut, Setting, chain, exact, stored, wide
from ono.nn.fused_owed import Behind, Owed


def lower_weights(block: NNBlock, w_q: nn.Linear) -> list[Tensor]:
    """Return the weights of the products of a block, which become its `operands`."""
    (w_1, _), (w_2, _) = block.ffn.layers()
    return [block.attention.qkv.weight, block.attention.out.weight, w_1, w_2, w_q.weight]


def lower_parameters(block: NNBlock, w_q: nn.Linear) -> list[Tensor]:
    """Return all parameters of a block and of w_Q, in the order of their gradients.

    Last are those that an attention has beside its projections.
    """
    attention = block.attention
    (w_1, b_1), (w_2, b_2) = block.ffn.layers()
    return [
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
        *own_parameters(attention).values(),
    ]


class Context(NamedTuple):
    """What the points tell each other by efficient attention, within heads."""

    peak: Tensor
    total: Tensor
    context: Tensor


class LowerKept(NamedTuple):
    """What the way back needs of the way there; what is told depends on the attention."""

    g: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    told: Context | Interlude
    middle: Tensor
    after: Tensor
    features: Tensor


def lower_forward(
    g: Float[Tensor, "batch points width"],
    parameters: Sequence[Tensor],
    multiplied: Sequence[Tensor],
    setting: Setting,
    attention: Attention | None = None,
) -> LowerKept:
    """Return the next g as `after` and ĝ as `features`, with all that the way back needs.

    An attention that is given is called between the kernels, in the place of efficient attention.
    """
    from ono.nn import lower_triton as kernels
    from ono.nn.attended_triton import attended_out

    _, share, precision, _ = setting
    norm, shift, _, _, b_out, norm_2, shift_2, _, b_1, _, b_2, _, b_q, *_ = parameters
    apart, modes = multiplied[-1].stride(0), multiplied[-1].shape[1]
    g = g.contiguous()
    batch, points, width = g.shape
    cut = Cut.of(batch, points)
    size = chain(batch * cut.tiles, precision)
    form = Form.of(batch * cut.tiles, points, width, precision, g.device)
    tiles = form.tiles
    w_qkv, w_out, w_1, w_2, w_q = (form.weight(parts) for parts in multiplied)
    q, k, v = (torch.empty_like(g, dtype=stored(precision)) for _ in range(3))
    kernels.lower_in[cut.tiles, batch](
        tiles(g), norm, shift, w_qkv, apart, tiles(q), tiles(k), tiles(v), points,
        **size, width=width, precision=precision,
    )  # fmt: skip
    middle, after = (torch.empty_like(g) for _ in range(2))
    features = g.new_empty(batch, points, modes)
    rest = (
        w_out, b_out, norm_2, shift_2, w_1, b_1, w_2, b_2, w_q, b_q, apart,
        tiles(middle), tiles(after), tiles(features), points,
    )  # fmt: skip
    size = _size_with_features(size, modes < width) | form.options
    sizes = {"modes": modes, "width": width, "precision": precision}
    told: Context | Interlude
    if attention is None:
        told = _context(k, v, setting, cut)
        kernels.lower_out[cut.tiles, batch](
            tiles(g), tiles(q), told.context, *rest, 1 / math.sqrt(share),
            **size, share=share, **sizes,
        )  # fmt: skip
    else:
        told = attended(attention, (q, k, v), setting)
        attended_out[cut.tiles, batch](tiles(g), tiles(told.made.detach()), *rest, **size, **sizes)
    return LowerKept(g, q, k, v, told, middle, after, features)


def _context(k: Tensor, v: Tensor, setting: Setting, cut: Cut) -> Context:
    from ono.nn import lower_triton as kernels

    weights, share, precision, _ = setting
    batch, points, width = k.shape
    heads = {"share": share, "width": width}
    new = partial(k.new_empty, dtype=torch.float32)
    peaks, totals = (new(batch, cut.parts, width) for _ in range(2))
    contexts = new(batch, cut.parts, share, width)
    kernels.lower_context[cut.parts, batch](
        k, v, weights, peaks, totals, contexts, points, cut.steps,
        weighted=weights is not None, **_context_size(precision), **heads, precision=precision,
    )  # fmt: skip
    peak, total = (new(batch, width) for _ in range(2))
    context = k.new_empty(3, batch, share, width, dtype=torch.bfloat16)
    at_once = 1 << (cut.parts - 1).bit_length()
    kernels.lower_merge[width // share, batch](
        peaks, totals, contexts, peak, total, context, cut.parts, parts_at_once=at_once, **heads
    )
    return Context(peak, total, context)


def grams_of(
    features: Float[Tensor, "batch points modes"], setting: Setting
) -> Float[Tensor, "batch parts share modes"]:
    """Return <ĝ, ĝ> within heads, in parts to be added."""
    from ono.nn.fused_triton import moments_within_heads

    weights, share, precision, _ = setting
    batch, points, modes = features.shape
    cut = Cut.of(batch, points)
    grams = features.new_empty(batch, cut.parts, share, modes)
    moments_within_heads[cut.parts, batch](
        features, features, weights, grams, points, cut.steps, 1,
        1 / points if weights is None else 1.0,
        weighted=weights is not None, **SUM, share=share, modes=modes, width=modes,
        precision=exact(precision),
    )  # fmt: skip
    return grams


def lower_backward(
    kept: LowerKept,
    gradients: tuple[Tensor, Tensor, Tensor],
    parameters: Sequence[Tensor],
    multiplied: Sequence[Tensor],
    setting: Setting,
) -> tuple[Float[Tensor, "batch points width"], Owed, list[Tensor | None]]:
    """Return the gradient before a block, and what those of its parameters come from.

    Given are the gradients of the next g, of ĝ and of <ĝ, ĝ>, the last as [batch share modes] and
    symmetric within heads. Returned last are those of what an attention of torch has learned beside
    its projections.
    """
    from ono.nn import lower_triton as kernels
    from ono.nn.attended_triton import attended_in_backward, attended_out_backward

    weights, share, precision, _ = setting
    g, q, k, v, told, middle, after, features = kept
    norm, shift, own_qkv, _, _, norm_2, shift_2, own_1, b_1, *_ = parameters
    w_qkv, w_out, w_1, w_2, w_q = multiplied
    apart = w_q.stride(0)
    d_after, d_features, d_gram = gradients
    batch, points, width = g.shape
    cut = Cut.of(batch, points)
    rows, size = batch * points, chain(batch * cut.tiles, precision)
    form = Form.of(batch * cut.tiles, points, width, precision, g.device)
    tiles = form.tiles
    weighted = {"weighted": weights is not None}
    heads = {"share": share, "width": width}
    d_x, d_g = torch.empty_like(g), torch.empty_like(g)
    modes = features.shape[-1]
    few = modes < width
    left = g.new_empty(6 if few else 7, rows, width, dtype=stored(precision))
    right = g.new_empty(4 if few else 5, rows, width, dtype=stored(precision))
    all_left, all_right = tiles(left), tiles(right)
    of_w_q = g.new_empty(batch * cut.tiles if few else 0, modes * (width + 1))
    kernels.lower_features_backward[cut.tiles, batch](
        tiles(d_after), tiles(d_features), d_gram, weights, tiles(after), tiles(features),
        form.weight(w_q), apart, tiles(d_x), all_left, all_right, of_w_q, points,
        **weighted, **_size_with_features(size, few), **heads, modes=modes, precision=precision,
        wide=wide(precision),
    )  # fmt: skip
    d_middle = feed_forward_back(
        d_x, middle, (norm_2, shift_2, w_1, b_1, w_2), left[4:6], right[2:4], precision
    )
    of_attention: list[Tensor | None] = []
    if isinstance(told, Context):
        d_contexts = g.new_empty(batch, cut.tiles, share, width)
        kernels.lower_mix_backward[cut.tiles, batch](
            tiles(d_middle), tiles(q), told.context, form.weight(w_out), apart, d_contexts,
            all_left, all_right, points, 1 / math.sqrt(share), **size, **heads, precision=precision,
        )  # fmt: skip
        d_context, mean = torch.empty_like(told.context), torch.empty_like(told.peak)
        kernels.lower_merge_backward[width // share, batch](
            d_contexts, told.context, told.total, d_context, mean, cut.tiles, at_once=16, **heads
        )
        kernels.lower_in_backward[cut.tiles, batch](
            tiles(d_middle), d_context, weights, tiles(g), tiles(k), tiles(v), told.peak, mean,
            norm, form.weight(w_qkv), apart, tiles(d_g), all_left, all_right, points,
            **weighted, **size, **form.options, **heads, precision=precision,
        )  # fmt: skip
    else:
        d_told = torch.empty_like(q)
        attended_out_backward[cut.tiles, batch](
            tiles(d_middle), tiles(told.made.detach()), form.weight(w_out), apart, tiles(d_told),
            all_left, all_right, points, **size, width=width, precision=precision,
        )  # fmt: skip
        d_sources, of_attention = interlude_backward(told, d_told)
        attended_in_backward[cut.tiles, batch](
            tiles(d_middle), *map(tiles, d_sources), tiles(g), norm, form.weight(w_qkv), apart,
            tiles(d_g), all_left, all_right, points, **size, width=width, precision=precision,
        )  # fmt: skip
    behind = Behind(0, own_qkv, norm, shift), Behind(4, own_1, norm_2, shift_2)
    return d_g, Owed(left, right, 3, (of_w_q,) if few else (), behind), of_attention


def lower_gradients(owed: Owed, precision: str) -> list[Tensor]:
    """Return the gradients of the parameters of a block, but for its attention's own ones."""
    products, biases, norms, of_w_q = owed.settled(precision)
    (d_norm, d_shift), (d_norm_2, d_shift_2) = norms
    pairs, width = biases.shape
    d_w_qkv, d_w_out, d_w_1, d_w_2, *rest = products.split((3 * width, *(pairs - 3) * (width,)))
    if of_w_q:
        modes = len(of_w_q[0]) // (width + 1)
        d_w_q, d_b_q = of_w_q[0].split((modes * width, modes))
        d_w_q = d_w_q.view(modes, width)
    else:
        (d_w_q,), d_b_q = rest, biases[6]
    return [
        d_norm, d_shift, d_w_qkv, d_w_out, biases[3],
        d_norm_2, d_shift_2, d_w_1, biases[4], d_w_2, biases[5], d_w_q, d_b_q,
    ]  # fmt: skip


def _context_size(precision: str) -> dict[str, int]:
    """Return the size of programs that sum exp(k)ᵀ v; what is split needs more registers."""
    return CHAIN | {"num_stages": 2} if precision == "bf16" else SUM


def _size_with_features(size: dict[str, int], few: bool) -> dict[str, int]:
    """Return the size of programs with products of ĝ.

    With eight warps Triton 3.6 gets those wrong that have few columns.
    """
    return CHAIN if few else size
