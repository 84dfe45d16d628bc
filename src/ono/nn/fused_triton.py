"""What the fused kernels share: layer norms, softmax within heads, GELU, sums over points.

A kernel holds a tile of points with all their channels, so a chain of point-wise layers goes from
one product to the next without leaving the chip. Names are those of the modules they replace.
"""

import triton
import triton.language as tl

from ono.nn.products_triton import product, store_within_heads
from ono.nn.tiles_triton import point_weights, take

_LOWEST = tl.constexpr(-1e30)
_ONES = tl.constexpr(16)
"""Columns of the least matrix that tensor cores multiply with."""


@triton.jit(do_not_specialize=["points", "steps", "times"])
def moments_within_heads(
    a,
    b,
    weights,
    out,
    points,
    steps,
    times,
    scale,
    weighted: tl.constexpr,
    share: tl.constexpr,
    modes: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Sum w aᵀb over the points of this program, within heads, times a scale.

    a has `modes` channels, b `width`, and several times for each a.
    """
    part, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source = sample // times
    total = tl.zeros((modes, width), tl.float32)
    for step in range(steps):
        first = (part * steps + step) * tile
        x = take(a, source, first, points, tile, modes)
        y = take(b, sample, first, points, tile, width)
        if weighted:
            x = x * point_weights(weights, source, first, points, weighted, tile)[:, None]
        total += product(tl.trans(x), y, precision)
    out += (sample * tl.num_programs(0) + part) * share * width
    store_within_heads(out, total * scale, share, modes, width)


@triton.jit
def normalised(x, width: tl.constexpr):
    """Return x with zero mean and unit variance over channels, and the factor that did it."""
    centred = x - (tl.sum(x, 1) / width)[:, None]
    factor = tl.rsqrt(tl.sum(centred * centred, 1) / width + 1e-5)
    return centred * factor[:, None], factor


@triton.jit
def norm_backward(gradient, unit, factor, width: tl.constexpr):
    """Return the gradient before a normalisation from that after it."""
    mean = tl.sum(gradient, 1) / width
    along = tl.sum(gradient * unit, 1) / width
    return (gradient - mean[:, None] - unit * along[:, None]) * factor[:, None]


@triton.jit
def head_softmax(x, share: tl.constexpr, tile: tl.constexpr, width: tl.constexpr):
    """Return the softmax over the channels of each head."""
    heads = tl.reshape(x, (tile, width // share, share))
    raised = tl.exp(heads - tl.max(heads, 2, keep_dims=True))
    return tl.reshape(raised * (1.0 / tl.sum(raised, 2, keep_dims=True)), (tile, width))


@triton.jit
def head_sums(x, share: tl.constexpr, tile: tl.constexpr, width: tl.constexpr):
    """Return the sum over the channels of each head, at each of them."""
    heads = tl.reshape(x, (tile, width // share, share))
    sums = tl.sum(heads, 2, keep_dims=True)
    return tl.reshape(tl.broadcast_to(sums, (tile, width // share, share)), (tile, width))


@triton.jit
def quick(instruction: tl.constexpr, x):
    """Return a function that the hardware knows to three digits or more."""
    return tl.inline_asm_elementwise(
        instruction + " $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
    )


@triton.jit
def gelu(x, precision: tl.constexpr):
    """Return x Φ(x) and its derivative.

    For products of bfloat16 numbers Φ is a hyperbolic tangent, right to 5e-5 before the hardware
    rounds it. Else the error function is that of Abramowitz and Stegun, 7.1.26, right to 1.5e-7.
    """
    if precision == "bf16":
        square = x * x
        some = tl.minimum(square, 36.0)
        argument = x * ((-3.51516870e-4 * some + 3.70056466e-2) * some + 0.797507884)
        share = 0.5 * quick("tanh.approx.f32", argument) + 0.5
        bell = quick("ex2.approx.ftz.f32", -0.7213475204 * square - 1.325748064)
        return x * share, share + x * bell
    else:
        z = tl.abs(x) * 0.7071067811865476
        t = tl.rsqrt(1.0 + 0.3275911 * z)
        t = t * t  # quicker than a division
        series = ((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736
        bell = tl.exp(-z * z)
        tail = 0.5 * (series * t + 0.254829592) * t * bell
        share = tl.where(x > 0, 1.0 - tail, tail)
        return x * share, share + x * bell * 0.3989422804014327


@triton.jit(do_not_specialize=["rows", "chunk", "pairs"])
def weight_gradients(
    left,
    right,
    out,
    rows,
    chunk,
    pairs,
    sharing: tl.constexpr,
    summed: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Sum leftᵀ right over a chunk of rows for one of several pairs, and left itself if `summed`.

    left is [pairs rows width], and the first `sharing` pairs have the same right. The results of
    the chunks, out [chunks pairs*(width+1) width], first the products of all pairs, then the sums,
    are added afterwards, always in the same order.
    """
    pair, part = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, width)
    left += pair.to(tl.int64) * rows * width
    right += tl.where(pair < sharing, 0, pair - max(sharing - 1, 0)).to(tl.int64) * rows * width
    total = tl.zeros((width, width), tl.float32)
    sums = tl.zeros((width, _ONES), tl.float32)
    for start in range(part * chunk, tl.minimum(part * chunk + chunk, rows), tile):
        a = take(left, 0, start, rows, tile, width)
        b = take(right, 0, start, rows, tile, width)
        total += product(tl.trans(a), b, precision)
        if summed and precision == "bf16":
            ones = tl.full((tile, _ONES), 1.0, tl.float32).to(tl.bfloat16)
            sums += tl.dot(tl.trans(a), ones)
        elif summed:
            sums += tl.sum(a.to(tl.float32), 0)[:, None]
    out += part * pairs * (width + 1) * width
    tl.store(out + (pair * width + column[:, None]) * width + column[None, :], total)
    tl.store(out + (pairs * width + pair) * width + column, tl.sum(sums, 1) / _ONES)


@triton.jit
def _behind_norm(
    products,
    sums,
    weight,
    scale,
    shift,
    gradients,
    rows,
    block,
    columns: tl.constexpr,
    width: tl.constexpr,
):
    row, column = tl.arange(0, width), block * columns + tl.arange(0, columns)
    scale, shift = tl.load(scale + column)[None, :], tl.load(shift + column)[None, :]
    d_scale, d_shift = tl.zeros((columns,), tl.float32), tl.zeros((columns,), tl.float32)
    for start in range(0, rows, width):
        at = (start + row)[:, None] * width + column[None, :]
        met, own = tl.load(products + at), tl.load(weight + at)
        total = tl.load(sums + start + row)[:, None]
        d_scale += tl.sum(own * met, 0)
        d_shift += tl.sum(own * total, 0)
        tl.store(products + at, met * scale + total * shift)
    tl.store(gradients + column, d_scale)
    tl.store(gradients + width + column, d_shift)


@triton.jit(do_not_specialize=["rows_1", "rows_2"])
def behind_norms(
    products_1,
    sums_1,
    weight_1,
    scale_1,
    shift_1,
    gradients_1,
    rows_1,
    products_2,
    sums_2,
    weight_2,
    scale_2,
    shift_2,
    gradients_2,
    rows_2,
    columns: tl.constexpr,
    width: tl.constexpr,
):
    """Finish the gradients of one or two norms and of the linear layers behind them.

    A layer reads u scale + shift. products, the sum of d outᵀ u, becomes the gradient of its
    weight, and gradients receives those of scale and shift. sums is that of d out.
    """
    block = tl.program_id(0)
    if tl.program_id(1) == 0:
        _behind_norm(
            products_1, sums_1, weight_1, scale_1, shift_1, gradients_1, rows_1, block, columns,
            width,
        )  # fmt: skip
    else:
        _behind_norm(
            products_2, sums_2, weight_2, scale_2, shift_2, gradients_2, rows_2, block, columns,
            width,
        )  # fmt: skip


@triton.jit
def _add_up_some(parts, out, count, size, block, at_once: tl.constexpr, width: tl.constexpr):
    column = block * width + tl.arange(0, width)
    total = tl.zeros((width,), tl.float32)
    for start in range(0, count, at_once):
        part = start + tl.arange(0, at_once)
        there = (part < count)[:, None] & (column < size)[None, :]
        at = part[:, None] * size + column[None, :]
        total += tl.sum(tl.load(parts + at, mask=there, other=0.0), 0)
    tl.store(out + column, total, mask=column < size)


@triton.jit(do_not_specialize=["count_1", "size_1", "count_2", "size_2", "count_3", "size_3"])
def add_up(
    parts_1,
    out_1,
    count_1,
    size_1,
    parts_2,
    out_2,
    count_2,
    size_2,
    parts_3,
    out_3,
    count_3,
    size_3,
    rows: tl.constexpr,
    width: tl.constexpr,
    more_rows: tl.constexpr,
    less_width: tl.constexpr,
):
    """Add up the rows of three arrays [count size], always in the same order.

    A program takes so many rows of so many columns at once, of the first array fewer rows.
    """
    block = tl.program_id(0)
    blocks_1 = tl.cdiv(size_1, width)
    blocks_2 = blocks_1 + tl.cdiv(size_2, less_width)
    if block < blocks_1:
        _add_up_some(parts_1, out_1, count_1, size_1, block, rows, width)
    elif block < blocks_2:
        _add_up_some(parts_2, out_2, count_2, size_2, block - blocks_1, more_rows, less_width)
    else:
        _add_up_some(parts_3, out_3, count_3, size_3, block - blocks_2, more_rows, less_width)
