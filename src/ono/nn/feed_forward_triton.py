"""The point-wise network behind a norm, x + FFN(LN x), which ends the blocks of both flows."""

import triton
import triton.language as tl

from ono.nn.fused_triton import gelu, norm_backward, normalised
from ono.nn.products_triton import held, linear, linear_backward, product_held


@triton.jit
def feed_forward(
    x, gamma, beta, w_1, b_1, w_2, b_2, apart, width: tl.constexpr, precision: tl.constexpr
):
    """Return x + FFN(LN x) of a tile."""
    column = tl.arange(0, width)
    unit, _ = normalised(x, width)
    told = unit * tl.load(gamma + column)[None, :] + tl.load(beta + column)[None, :]
    hidden = linear(told, w_1, apart, width, width, precision) + tl.load(b_1 + column)[None, :]
    active, _ = gelu(hidden, precision)
    grown = linear(active, w_2, apart, width, width, precision) + tl.load(b_2 + column)[None, :]
    return x + grown


@triton.jit(do_not_specialize=["rows"])
def feed_forward_backward(
    d_after,
    before,
    gamma,
    beta,
    w_1,
    b_1,
    w_2,
    apart,
    d_before,
    left,
    right,
    rows,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Go back through it; left receives d hidden and d after, right what they meet.

    What d hidden meets is normalised, but not scaled and shifted.
    """
    row, column = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, width)
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    inside = (row < rows)[:, None] & (column < width)[None, :]
    plane = tl.cast(rows, tl.int64) * width
    kind = left.dtype.element_ty
    unit, _ = normalised(tl.load(before + at, mask=inside, other=0.0), width)
    tl.store(right + at, unit.to(kind), mask=inside)
    told = unit * tl.load(gamma + column)[None, :] + tl.load(beta + column)[None, :]
    w_1 = held(w_1, width, width, "plain", precision)
    hidden = product_held(told, w_1, apart, width, width, "turned", precision)
    active, slope = gelu(hidden + tl.load(b_1 + column)[None, :], precision)
    tl.store(right + plane + at, active.to(kind), mask=inside)
    d_x = tl.load(d_after + at, mask=inside, other=0.0)
    tl.store(left + plane + at, d_x.to(kind), mask=inside)
    d_hidden = linear_backward(d_x, w_2, apart, width, width, precision) * slope
    tl.store(left + at, d_hidden.to(kind), mask=inside)
    d_told = product_held(d_hidden, w_1, apart, width, width, "plain", precision)
    # Read and computed anew: kept, they would not fit the registers.
    unit, factor = normalised(tl.load(before + at, mask=inside, other=0.0), width)
    d_x = norm_backward(d_told * tl.load(gamma + column)[None, :], unit, factor, width)
    d_x += tl.load(d_after + at, mask=inside, other=0.0)
    tl.store(d_before + at, d_x, mask=inside)
