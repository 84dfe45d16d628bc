"""Softmax attention between many points and at most a tile of landmarks, as GPU kernels.

    read             points look at landmarks: one tile of points in each program
    write, merged    landmarks look at points: parts of the points in each program, then all parts
    …_backward       the same ways back; shares are made again

Arrays are [batch heads rows share] with any strides but that of channels, given as those of sample,
head and row. What a sum over points leads to is stored in parts, to be added.
"""

import triton
import triton.language as tl

from ono.nn.products_triton import product

LOWEST = tl.constexpr(-1e30)
"""Instead of minus infinity, of which differences are not numbers."""


@triton.jit
def _own(array, stride_sample, stride_head, heads):
    """Return where the rows of this program's sample and head begin."""
    sample, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    return array + sample * stride_sample + head * stride_head


@triton.jit
def rows(array, stride, first, count, tile: tl.constexpr, share: tl.constexpr):
    """Load some rows; those that there are not are zeros."""
    row, channel = first + tl.arange(0, tile), tl.arange(0, share)
    at = row.to(tl.int64)[:, None] * stride + channel[None, :]
    return tl.load(array + at, mask=(row < count)[:, None] & (channel >= 0)[None, :], other=0.0)


@triton.jit
def store_rows(array, stride, first, count, x, tile: tl.constexpr, share: tl.constexpr):
    """Store the rows that there are."""
    row, channel = first + tl.arange(0, tile), tl.arange(0, share)
    at = row.to(tl.int64)[:, None] * stride + channel[None, :]
    inside = (row < count)[:, None] & (channel >= 0)[None, :]
    tl.store(array + at, x.to(array.dtype.element_ty), mask=inside)


@triton.jit
def _bias(bias, first, keys, heads, biased: tl.constexpr, tile: tl.constexpr):
    """Return what is added to the logits of some keys, of which there are not those that hide."""
    key = first + tl.arange(0, tile)
    if biased:
        own = bias + (tl.program_id(1) // heads).to(tl.int64) * keys
        told = tl.load(own + key, mask=key < keys, other=0.0).to(tl.float32)
        return tl.where(key < keys, tl.maximum(told, LOWEST), LOWEST)
    else:
        return tl.where(key < keys, 0.0, LOWEST)


@triton.jit
def _shares(q, k, added, scale, precision: tl.constexpr):
    """Return by which shares some queries look at all landmarks."""
    logits = product(q, tl.trans(k), precision) * scale + added[None, :]
    share = tl.exp(logits - tl.max(logits, 1)[:, None])
    return share / tl.sum(share, 1)[:, None]


@triton.jit(do_not_specialize=["points", "marks"])
def read(
    q, k, v, bias, out,
    q_sample, q_head, q_row, k_sample, k_head, k_row, v_sample, v_head, v_row,
    o_sample, o_head, o_row, heads, points, marks, scale,
    biased: tl.constexpr, tile: tl.constexpr, wide: tl.constexpr, share: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Let one tile of points look at the landmarks."""
    first = tl.program_id(0) * tile
    asked = rows(_own(q, q_sample, q_head, heads), q_row, first, points, tile, share)
    key = rows(_own(k, k_sample, k_head, heads), k_row, 0, marks, wide, share)
    told = rows(_own(v, v_sample, v_head, heads), v_row, 0, marks, wide, share)
    added = _bias(bias, 0, marks, heads, biased, wide)
    shares = _shares(asked, key, added, scale, precision)
    mixed = product(shares, told, precision)
    store_rows(_own(out, o_sample, o_head, heads), o_row, first, points, mixed, tile, share)


@triton.jit(do_not_specialize=["points", "marks", "steps"])
def read_backward(
    q, k, v, bias, d_out, d_q, d_marks,
    q_sample, q_head, q_row, k_sample, k_head, k_row, v_sample, v_head, v_row,
    o_sample, o_head, o_row, d_sample, d_head, d_row, heads, points, marks, steps, scale,
    biased: tl.constexpr, tile: tl.constexpr, wide: tl.constexpr, share: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Go back to the points of this part, and to landmarks: d_marks is [parts 2 all wide share]."""
    key = rows(_own(k, k_sample, k_head, heads), k_row, 0, marks, wide, share)
    told = rows(_own(v, v_sample, v_head, heads), v_row, 0, marks, wide, share)
    added = _bias(bias, 0, marks, heads, biased, wide)
    q, d_out = _own(q, q_sample, q_head, heads), _own(d_out, o_sample, o_head, heads)
    d_q = _own(d_q, d_sample, d_head, heads)
    d_key, d_told = tl.zeros((wide, share), tl.float32), tl.zeros((wide, share), tl.float32)
    for step in range(steps):
        first = (tl.program_id(0) * steps + step) * tile
        asked = rows(q, q_row, first, points, tile, share)
        d_mixed = rows(d_out, o_row, first, points, tile, share)
        shares = _shares(asked, key, added, scale, precision)
        d_told += product(tl.trans(shares), d_mixed, precision)
        d_shares = product(d_mixed, tl.trans(told), precision)
        mean = tl.sum(shares * d_shares, 1)
        d_logits = shares * (d_shares - mean[:, None]) * scale
        store_rows(d_q, d_row, first, points, product(d_logits, key, precision), tile, share)
        d_key += product(tl.trans(d_logits), asked, precision)
    every = tl.num_programs(1)
    part = tl.cast(tl.program_id(0), tl.int64) * 2 * every + tl.program_id(1)
    size = wide * share
    store_rows(d_marks + part * size, share, 0, wide, d_key, wide, share)
    store_rows(d_marks + (part + every) * size, share, 0, wide, d_told, wide, share)


@triton.jit(do_not_specialize=["points", "marks", "steps"])
def write(
    q, k, v, bias, peaks, totals, sums,
    q_sample, q_head, q_row, k_sample, k_head, k_row, v_sample, v_head, v_row,
    heads, points, marks, steps, scale,
    biased: tl.constexpr, tile: tl.constexpr, wide: tl.constexpr, share: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Let the landmarks look at the points of this part."""
    asked = rows(_own(q, q_sample, q_head, heads), q_row, 0, marks, wide, share)
    k, v = _own(k, k_sample, k_head, heads), _own(v, v_sample, v_head, heads)
    peak, total = tl.full((wide,), LOWEST, tl.float32), tl.zeros((wide,), tl.float32)
    mixed = tl.zeros((wide, share), tl.float32)
    for step in range(steps):
        first = (tl.program_id(0) * steps + step) * tile
        key = rows(k, k_row, first, points, tile, share)
        told = rows(v, v_row, first, points, tile, share)
        added = _bias(bias, first, points, heads, biased, tile)
        logits = product(asked, tl.trans(key), precision) * scale + added[None, :]
        higher = tl.maximum(peak, tl.max(logits, 1))
        shares = tl.exp(logits - higher[:, None])
        smaller = tl.exp(peak - higher)
        total = total * smaller + tl.sum(shares, 1)
        mixed = mixed * smaller[:, None] + product(shares, told, precision)
        peak = higher
    part = tl.cast(tl.program_id(0), tl.int64) * tl.num_programs(1) + tl.program_id(1)
    mark = tl.arange(0, wide)
    tl.store(peaks + part * wide + mark, peak)
    tl.store(totals + part * wide + mark, total)
    store_rows(sums + part * wide * share, share, 0, wide, mixed, wide, share)


@triton.jit(do_not_specialize=["parts", "marks"])
def merged(
    peaks, totals, sums, out, level, parts, marks, wide: tl.constexpr, share: tl.constexpr
):  # fmt: skip
    """Put all parts together; level is the logarithm of the sum of exponentials."""
    own, every, mark = tl.program_id(0), tl.num_programs(0), tl.arange(0, wide)
    peak, total = tl.full((wide,), LOWEST, tl.float32), tl.zeros((wide,), tl.float32)
    mixed = tl.zeros((wide, share), tl.float32)
    for step in range(parts):
        part = tl.cast(step, tl.int64) * every + own
        its_peak = tl.load(peaks + part * wide + mark)
        higher = tl.maximum(peak, its_peak)
        smaller, its = tl.exp(peak - higher), tl.exp(its_peak - higher)
        total = total * smaller + tl.load(totals + part * wide + mark) * its
        more = rows(sums + part * wide * share, share, 0, wide, wide, share)
        mixed = mixed * smaller[:, None] + more * its[:, None]
        peak = higher
    tl.store(level + own * wide + mark, peak + tl.log(total))
    place = out + tl.cast(own, tl.int64) * marks * share
    store_rows(place, share, 0, marks, mixed / total[:, None], wide, share)


@triton.jit(do_not_specialize=["points", "marks", "steps"])
def write_backward(
    q, k, v, bias, out, level, d_out, d_k, d_v, d_q,
    q_sample, q_head, q_row, k_sample, k_head, k_row, v_sample, v_head, v_row,
    o_sample, o_head, o_row, d_sample, d_head, d_row, heads, points, marks, steps, scale,
    biased: tl.constexpr, tile: tl.constexpr, wide: tl.constexpr, share: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Go back to the points of this part, and to landmarks: d_q is [parts all wide share]."""
    asked = rows(_own(q, q_sample, q_head, heads), q_row, 0, marks, wide, share)
    place = tl.cast(tl.program_id(1), tl.int64)
    mixed = rows(out + place * marks * share, share, 0, marks, wide, share).to(tl.float32)
    d_mixed = rows(_own(d_out, o_sample, o_head, heads), o_row, 0, marks, wide, share)
    mean = tl.sum(mixed * d_mixed.to(tl.float32), 1)
    level = tl.load(level + place * wide + tl.arange(0, wide))
    k, v = _own(k, k_sample, k_head, heads), _own(v, v_sample, v_head, heads)
    d_k, d_v = _own(d_k, d_sample, d_head, heads), _own(d_v, d_sample, d_head, heads)
    d_asked = tl.zeros((wide, share), tl.float32)
    for step in range(steps):
        first = (tl.program_id(0) * steps + step) * tile
        key = rows(k, k_row, first, points, tile, share)
        told = rows(v, v_row, first, points, tile, share)
        added = _bias(bias, first, points, heads, biased, tile)
        logits = product(asked, tl.trans(key), precision) * scale + added[None, :]
        shares = tl.exp(logits - level[:, None])
        d_told = product(tl.trans(shares), d_mixed, precision)
        store_rows(d_v, d_row, first, points, d_told, tile, share)
        d_shares = product(d_mixed, tl.trans(told), precision)
        d_logits = shares * (d_shares - mean[:, None]) * scale
        d_key = product(tl.trans(d_logits), asked, precision)
        store_rows(d_k, d_row, first, points, d_key, tile, share)
        d_asked += product(d_logits, key, precision)
    part = tl.cast(tl.program_id(0), tl.int64) * tl.num_programs(1) + place
    store_rows(d_q + part * wide * share, share, 0, wide, d_asked, wide, share)
