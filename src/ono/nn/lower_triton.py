"""The NN block of the lower flow with efficient attention (Eq. 3), and ĝ = g w_Q behind it.

`attended_triton` has what is different with other attentions.

Forward, for one tile of points in each program:

    lower_in       LN, q k v
    lower_context  shares of the context: the average of v under the softmax of k over points
    lower_merge    the context of a sample from its shares
    lower_out      g + attention, g + FFN, ĝ

and <ĝ, ĝ> by `moments_within_heads`.

Backward goes through ĝ, the FFN, the attention, then q k v. What the kernels leave for the
gradients of the weights is multiplied by `weight_gradients`: left are gradients behind the linear
layers, of q, k, v, the output of attention, the two layers of the FFN and ĝ; right what went into
them, where q, k and v share one, and behind norms without their scale and shift.
"""

import triton
import triton.language as tl

from ono.nn.feed_forward_triton import feed_forward
from ono.nn.fused_triton import (
    _LOWEST,
    head_softmax,
    head_sums,
    norm_backward,
    normalised,
)
from ono.nn.products_triton import (
    held,
    linear,
    linear_backward,
    load_parts,
    product,
    product_held,
    product_with,
    store_parts,
    store_within_heads,
    whole,
)
from ono.nn.tiles_triton import give, own_tile, point_weights, take


@triton.jit(do_not_specialize=["points"])
def lower_in(
    g,
    gamma,
    beta,
    w_qkv,
    apart,
    q,
    k,
    v,
    points,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Project to q, k and v."""
    sample, first = own_tile(tile)
    column = tl.arange(0, width)
    unit, _ = normalised(take(g, sample, first, points, tile, width), width)
    x = unit * tl.load(gamma + column)[None, :] + tl.load(beta + column)[None, :]
    query = linear(x, w_qkv, apart, width, width, precision)
    give(q, sample, first, points, query, tile, width)
    key = linear(x, w_qkv, apart, width, width, precision, width)
    give(k, sample, first, points, key, tile, width)
    value = linear(x, w_qkv, apart, width, width, precision, 2 * width)
    give(v, sample, first, points, value, tile, width)


@triton.jit(do_not_specialize=["points", "steps"])
def lower_context(
    k,
    v,
    weights,
    peaks,
    totals,
    contexts,
    points,
    steps,
    weighted: tl.constexpr,
    share: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Sum exp(k) and exp(k)ᵀ v over the points of this program.

    As in any softmax the largest k is taken off first: here the largest so far.
    """
    part, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, width)
    peak = tl.full((width,), _LOWEST, tl.float32)
    total = tl.zeros((width,), tl.float32)
    context = tl.zeros((width, width), tl.float32)
    for step in range(steps):
        row = (part * steps + step) * tile + tl.arange(0, tile)
        real = row < points
        at = (sample * points + row)[:, None] * width + column[None, :]
        inside = real[:, None] & (column < width)[None, :]
        key = tl.load(k + at, mask=inside, other=0.0).to(tl.float32)
        if weighted:
            weight = tl.load(weights + sample * points + row, mask=real, other=0.0)
            real = weight > 0
        before = peak
        peak = tl.maximum(peak, tl.max(tl.where(real[:, None], key, _LOWEST), 0))
        raised = tl.where(real[:, None], tl.exp(key - peak[None, :]), 0.0)
        if weighted:
            raised = raised * weight[:, None]
        fade = tl.exp(before - peak)
        total = total * fade + tl.sum(raised, 0)
        value = tl.load(v + at, mask=inside, other=0.0)
        context = context * fade[:, None] + product(tl.trans(raised), value, precision)
    place = sample * tl.num_programs(0) + part
    tl.store(peaks + place * width + column, peak)
    tl.store(totals + place * width + column, total)
    store_within_heads(contexts + place * share * width, context, share, width, width)


@triton.jit(do_not_specialize=["parts"])
def lower_merge(
    peaks,
    totals,
    contexts,
    peak,
    total,
    context,
    parts,
    parts_at_once: tl.constexpr,
    share: tl.constexpr,
    width: tl.constexpr,
):
    """Add up what the parts of a sample know of one head's context."""
    head, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    part, inner, own = tl.arange(0, parts_at_once), tl.arange(0, share), tl.arange(0, share)
    there = part < parts
    place = sample * parts + part
    at = place[:, None] * width + head * share + inner[None, :]
    known = there[:, None] & (inner < share)[None, :]
    each = tl.load(peaks + at, mask=known, other=_LOWEST)
    top = tl.max(each, 0)
    fade = tl.exp(each - top[None, :])
    sums = tl.sum(fade * tl.load(totals + at, mask=known, other=0.0), 0)
    at = (place[:, None, None] * share + inner[None, :, None]) * width
    at += head * share + own[None, None, :]
    known = known[:, :, None] & (own < share)[None, None, :]
    mixed = tl.sum(fade[:, :, None] * tl.load(contexts + at, mask=known, other=0.0), 0)
    tl.store(peak + sample * width + head * share + inner, top)
    tl.store(total + sample * width + head * share + inner, sums)
    at = (sample * share + inner)[:, None] * width + head * share + own[None, :]
    store_parts(context, tl.num_programs(1).to(tl.int64) * share * width, at, mixed / sums[:, None])


@triton.jit(do_not_specialize=["points"])
def lower_out(
    g,
    q,
    context,
    w_out,
    b_out,
    gamma,
    beta,
    w_1,
    b_1,
    w_2,
    b_2,
    w_q,
    b_q,
    apart,
    middle,
    after,
    features,
    points,
    scale,
    share: tl.constexpr,
    modes: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Add the attention, add the FFN, project to ĝ."""
    sample, first = own_tile(tile)
    column = tl.arange(0, width)
    query = take(q, sample, first, points, tile, width).to(tl.float32)
    soft = head_softmax(query, share, tile, width)
    context += sample * share * width
    all_contexts = tl.num_programs(1).to(tl.int64) * share * width
    mixed = (
        product_with(soft, context, all_contexts, share, width, width, "whole", precision) * scale
    )
    finish(
        mixed, g, w_out, b_out, gamma, beta, w_1, b_1, w_2, b_2, w_q, b_q, apart, middle, after,
        features, sample, first, points, column, modes, tile, width, precision,
    )  # fmt: skip


@triton.jit
def finish(
    mixed, g, w_out, b_out, gamma, beta, w_1, b_1, w_2, b_2, w_q, b_q, apart, middle, after,
    features, sample, first, points, column, modes: tl.constexpr, tile: tl.constexpr,
    width: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Add what the attention has mixed, add the FFN, project to ĝ."""
    x = take(g, sample, first, points, tile, width)
    x += linear(mixed, w_out, apart, width, width, precision) + tl.load(b_out + column)[None, :]
    give(middle, sample, first, points, x, tile, width)
    x = feed_forward(x, gamma, beta, w_1, b_1, w_2, b_2, apart, width, precision)
    give(after, sample, first, points, x, tile, width)
    x = linear(x, w_q, apart, modes, width, precision)
    x += tl.load(b_q + tl.arange(0, modes))[None, :]
    give(features, sample, first, points, x, tile, modes)


@triton.jit(do_not_specialize=["points"])
def lower_features_backward(
    d_after,
    d_features,
    d_gram,
    weights,
    after,
    features,
    w_q,
    apart,
    d_x,
    left,
    right,
    of_w_q,
    points,
    weighted: tl.constexpr,
    share: tl.constexpr,
    modes: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
    wide: tl.constexpr,
):
    """Go back through <ĝ, ĝ> and w_Q to g; left 6 is dĝ, right 4 is g.

    If ĝ has fewer channels than g, of_w_q receives their product and below it the sum of dĝ, for
    each tile: that is less than both of them.
    """
    sample, first = own_tile(tile)
    samples = tl.num_programs(1)
    psi = take(features, sample, first, points, tile, modes)
    weight = point_weights(weights, sample, first, points, weighted, tile)
    d_gram += sample * share * modes
    # d_gram is symmetric, and ĝ is on both sides of <ĝ, ĝ>.
    d_psi = product(psi * (2.0 * weight)[:, None], whole(d_gram, share, modes, modes), wide)
    d_psi += take(d_features, sample, first, points, tile, modes)
    if modes == width:
        give(left, 6 * samples + sample, first, points, d_psi, tile, width)
    total = linear_backward(d_psi, w_q, apart, modes, width, precision)
    total += take(d_after, sample, first, points, tile, width)
    give(d_x, sample, first, points, total, tile, width)
    grown = take(after, sample, first, points, tile, width)
    if modes == width:
        give(right, 4 * samples + sample, first, points, grown, tile, width)
    else:
        mode, column = tl.arange(0, modes), tl.arange(0, width)
        of_w_q += (sample * tl.num_programs(0) + tl.program_id(0)) * modes * (width + 1)
        met = product(tl.trans(d_psi), grown, precision)
        tl.store(of_w_q + mode[:, None] * width + column[None, :], met)
        tl.store(of_w_q + modes * width + mode, tl.sum(d_psi, 0))


@triton.jit(do_not_specialize=["points"])
def lower_mix_backward(
    d_middle,
    q,
    context,
    w_out,
    apart,
    d_contexts,
    left,
    right,
    points,
    scale,
    share: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Go back through the attention to q and the context.

    left 0 is dq, left 3 is dg behind the attention, right 1 what the attention mixed.
    """
    sample, first = own_tile(tile)
    samples = tl.num_programs(1)
    context += sample * share * width

    query = take(q, sample, first, points, tile, width).to(tl.float32)
    soft = head_softmax(query, share, tile, width)
    all_contexts = samples.to(tl.int64) * share * width
    context = held(context, share, width, "whole", precision)
    mixed = product_held(soft, context, all_contexts, share, width, "whole", precision) * scale
    give(right, samples + sample, first, points, mixed, tile, width)
    d_x = take(d_middle, sample, first, points, tile, width)
    give(left, 3 * samples + sample, first, points, d_x, tile, width)
    d_mixed = linear_backward(d_x, w_out, apart, width, width, precision) * scale
    d_soft = product_held(d_mixed, context, all_contexts, share, width, "whole_turned", precision)
    d_query = soft * (d_soft - head_sums(soft * d_soft, share, tile, width))
    give(left, sample, first, points, d_query, tile, width)
    d_contexts += (sample * tl.num_programs(0) + tl.program_id(0)) * share * width
    d_table = product(tl.trans(soft), d_mixed, precision)
    store_within_heads(d_contexts, d_table, share, width, width)


@triton.jit(do_not_specialize=["tiles"])
def lower_merge_backward(
    d_contexts,
    context,
    total,
    d_context,
    mean,
    tiles,
    at_once: tl.constexpr,
    share: tl.constexpr,
    width: tl.constexpr,
):
    """Add up the gradient of one head's context, and the mean that the softmax takes off it.

    Both are divided by the sum of exp(k), so that backward needs no more than exp(k).
    """
    head, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    inner, own = tl.arange(0, share), tl.arange(0, share)
    block = inner[:, None] * width + head * share + own[None, :]
    sums = tl.zeros((share, share), tl.float32)
    for start in range(0, tiles, at_once):
        number = start + tl.arange(0, at_once)
        there = (number < tiles)[:, None, None] & (inner >= 0)[None, :, None]
        some = (sample * tiles + number)[:, None, None] * share * width + block[None, :, :]
        sums += tl.sum(tl.load(d_contexts + some, mask=there, other=0.0), 0)
    place = sample * width + head * share + inner
    sums = sums / tl.load(total + place)[:, None]
    block += sample * share * width
    all_contexts = tl.num_programs(1).to(tl.int64) * share * width
    store_parts(d_context, all_contexts, block, sums)
    known = load_parts(context, all_contexts, block)
    tl.store(mean + place, tl.sum(sums * known, 1))


@triton.jit
def raised_keys(
    k, peak, weights, sample, first, points, weighted: tl.constexpr, tile: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    """Return exp(k) of a tile, as weighted, with the largest k of all points taken off."""
    key = take(k, sample, first, points, tile, width).to(tl.float32)
    raised = tl.exp(key - tl.load(peak + tl.arange(0, width))[None, :])
    row = first + tl.arange(0, tile)
    if weighted:
        weight = tl.load(weights + sample * points + row, mask=row < points, other=0.0)
        return tl.where((weight > 0)[:, None], raised * weight[:, None], 0.0)
    else:
        return tl.where((row < points)[:, None], raised, 0.0)


@triton.jit(do_not_specialize=["points"])
def lower_in_backward(
    d_middle,
    d_context,
    weights,
    g,
    k,
    v,
    peak,
    mean,
    gamma,
    w_qkv,
    apart,
    d_g,
    left,
    right,
    points,
    weighted: tl.constexpr,
    share: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Go back from q, k and v to g; left receives dk and dv, right the normalised g."""
    sample, first = own_tile(tile)
    samples = tl.num_programs(1)
    column = tl.arange(0, width)

    d_context += sample * share * width
    all_contexts = samples.to(tl.int64) * share * width
    mean = tl.load(mean + sample * width + column)[None, :]
    peak += sample * width
    value = take(v, sample, first, points, tile, width).to(tl.float32)
    d_context = held(d_context, share, width, "whole", precision)
    rise = product_held(value, d_context, all_contexts, share, width, "whole_turned", precision)
    raised = raised_keys(k, peak, weights, sample, first, points, weighted, tile, width)
    d_key = raised * (rise - mean)
    give(left, samples + sample, first, points, d_key, tile, width)
    d_told = linear_backward(d_key, w_qkv, apart, width, width, precision, width)
    # Read and computed anew, here and below: kept, they would not fit the registers.
    raised = raised_keys(k, peak, weights, sample, first, points, weighted, tile, width)
    d_value = product_held(raised, d_context, all_contexts, share, width, "whole", precision)
    give(left, 2 * samples + sample, first, points, d_value, tile, width)
    d_told += linear_backward(d_value, w_qkv, apart, width, width, precision, 2 * width)
    d_query = take(left, sample, first, points, tile, width).to(tl.float32)
    d_told += linear_backward(d_query, w_qkv, apart, width, width, precision)

    back_to_g(d_told, d_middle, g, gamma, d_g, right, sample, first, points, tile, width)


@triton.jit
def back_to_g(
    d_told, d_middle, g, gamma, d_g, right, sample, first, points, tile: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    """Go back through the norm before q, k and v, and add what came past the attention."""
    column = tl.arange(0, width)
    unit, factor = normalised(take(g, sample, first, points, tile, width), width)
    give(right, sample, first, points, unit, tile, width)
    d_x = norm_backward(d_told * tl.load(gamma + column)[None, :], unit, factor, width)
    d_x += take(d_middle, sample, first, points, tile, width)
    give(d_g, sample, first, points, d_x, tile, width)
