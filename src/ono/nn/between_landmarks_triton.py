"""What landmarks tell, as one GPU kernel there and one back: a program for each sample and head.

    S = softmax(q kᵀ / sqrt(share)),  X = pinv(S) by iteration,  told = X seen

A tile may be larger than its matrix. Around it are zeros, which all products leave there.

Only the products of the iterations take tensor cores. With products of the same memory before and
behind the loop as well, ptxas 12.8 gives those behind it the address of a register that nothing
has written (`benchmarks/other_gpus.py` looks for such); they are small.
"""

import triton
import triton.language as tl

from ono.nn.landmark_attention_triton import LOWEST, rows, store_rows
from ono.nn.products_triton import product


@triton.jit
def _places(size: tl.constexpr, used, tile: tl.constexpr):
    """Return where the entries of a matrix lie, which there are, which count, the identity."""
    row, column = tl.arange(0, tile)[:, None], tl.arange(0, tile)[None, :]
    there = (row < size) & (column < size)
    identity = tl.where(row == column, 1.0, 0.0)
    return row * size + column, there, (row < used) & (column < used), identity


@triton.jit
def _used(counts, number, heads, size: tl.constexpr):
    """Return how many landmarks of this program's sample are used."""
    if counts is None:
        return size
    else:
        return tl.load(counts + number // heads)


@triton.jit
def _small(a, b):
    """Return the product of a matrix with what has the width of a head, or of two of those."""
    return product(a, b, "ieee")


@triton.jit
def _polynomials(p, identity, precision: tl.constexpr):
    """Return 15 - P (7 - P), and ¼ (13 - P times that)."""
    inner = 15 * identity - 7 * p + product(p, p, precision)
    return inner, 3.25 * identity - 0.25 * product(p, inner, precision)


@triton.jit
def told(
    q, k, seen, counts, out, shares, kept, heads, iterations, scale,
    size: tl.constexpr, tile: tl.constexpr, share: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Iterate from Sᵀ, scaled; S and what each iteration begins with are kept if there is room."""
    number, matrices = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    used = _used(counts, number, heads, size)
    at, there, inside, identity = _places(size, used, tile)
    own, area = number * size * share, size * size
    asked = rows(q + own, share, 0, used, tile, share)
    key = rows(k + own, share, 0, used, tile, share)
    logits = _small(asked, tl.trans(key)) * scale
    logits = tl.where(tl.arange(0, tile)[None, :] < used, logits, LOWEST)
    s = tl.exp(logits - tl.max(logits, 1)[:, None])
    s = tl.where(inside, s / tl.sum(s, 1)[:, None], 0.0)
    if kept is not None:
        tl.store(shares + number * area + at, s, mask=there)
    norm = tl.max(tl.sum(s, 1)) * tl.max(tl.sum(s, 0))
    x = tl.trans(s) / tl.where(norm > 0, norm, 1.0)
    for step in range(iterations):
        if kept is not None:
            begin = (tl.cast(step, tl.int64) * matrices + number) * area
            tl.store(kept + begin + at, x, mask=there)
        _, factor = _polynomials(product(s, x, precision), identity, precision)
        x = product(x, factor, precision)
    if kept is not None:
        last = (tl.cast(iterations, tl.int64) * matrices + number) * area
        tl.store(kept + last + at, x, mask=there)
    answer = _small(x, rows(seen + own, share, 0, used, tile, share))
    store_rows(out + own, share, 0, size, answer, tile, share)


@triton.jit
def told_backward(
    d_out, q, k, seen, counts, shares, kept, d_q, d_k, d_seen, heads, iterations, scale,
    size: tl.constexpr, tile: tl.constexpr, share: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Go back through the iterations, each made again from what it began with, and the softmax."""
    number, matrices = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    used = _used(counts, number, heads, size)
    at, there, _, identity = _places(size, used, tile)
    own, area = number * size * share, size * size
    shares += number * area
    d_told = rows(d_out + own, share, 0, used, tile, share)
    last = (tl.cast(iterations, tl.int64) * matrices + number) * area
    x = tl.load(kept + last + at, mask=there, other=0.0)
    store_rows(d_seen + own, share, 0, size, _small(tl.trans(x), d_told), tile, share)
    d_x = _small(d_told, tl.trans(rows(seen + own, share, 0, used, tile, share)))
    d_s = tl.zeros((tile, tile), tl.float32)
    for done in range(1, iterations + 1):
        begin = (tl.cast(iterations - done, tl.int64) * matrices + number) * area
        s = tl.load(shares + at, mask=there, other=0.0)
        x = tl.load(kept + begin + at, mask=there, other=0.0)
        p = product(s, x, precision)
        d_outer = -0.25 * product(tl.trans(x), d_x, precision)
        inner, factor = _polynomials(p, identity, precision)
        d_x = product(d_x, tl.trans(factor), precision)
        d_p = product(d_outer, tl.trans(inner), precision)
        d_inner = product(tl.trans(p), d_outer, precision)
        d_p += product(tl.trans(p), d_inner, precision)
        d_p += product(d_inner, tl.trans(p), precision) - 7 * d_inner
        # Volatile, so that both are read again: held, they take twice the shared memory.
        x = tl.load(kept + begin + at, mask=there, other=0.0, volatile=True)
        d_s += product(d_p, tl.trans(x), precision)
        s = tl.load(shares + at, mask=there, other=0.0, volatile=True)
        d_x += product(tl.trans(s), d_p, precision)
    s = tl.load(shares + at, mask=there, other=0.0)
    d_s += _scaling_backward(s, tl.trans(d_x))
    d_logits = s * (d_s - tl.sum(s * d_s, 1)[:, None]) * scale
    key = rows(k + own, share, 0, used, tile, share)
    store_rows(d_q + own, share, 0, size, _small(d_logits, key), tile, share)
    asked = rows(q + own, share, 0, used, tile, share)
    d_key = _small(tl.trans(d_logits), asked)
    store_rows(d_k + own, share, 0, size, d_key, tile, share)


@triton.jit
def _scaling_backward(s, gradient):
    """Return the gradient before S / (largest sum of a row · of a column) from that behind it.

    Sums that are equally large share theirs. Shares are positive, those of no landmark zero.
    """
    row_sums, column_sums = tl.sum(s, 1), tl.sum(s, 0)
    row, column = tl.max(row_sums), tl.max(column_sums)
    norm = tl.where(row * column > 0, row * column, 1.0)
    d_s = gradient / norm
    d_norm = -tl.sum(d_s * s) / norm
    of_row = (row_sums == row).to(tl.float32)
    of_column = (column_sums == column).to(tl.float32)
    d_sizes = (of_row * (column / tl.sum(of_row)))[:, None]
    d_sizes += (of_column * (row / tl.sum(of_column)))[None, :]
    return d_s + d_norm * d_sizes
