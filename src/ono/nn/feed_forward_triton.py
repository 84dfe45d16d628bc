"""The point-wise network behind a norm, x + FFN(LN x), which ends the blocks of both flows."""

import triton
import triton.language as tl

from ono.nn.fused_triton import gelu, norm_backward, normalised
from ono.nn.products_triton import held, linear, linear_backward, product_held
from ono.nn.tiles_triton import give, take


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
    first, column = tl.program_id(0) * tile, tl.arange(0, width)
    unit, _ = normalised(take(before, 0, first, rows, tile, width), width)
    give(right, 0, first, rows, unit, tile, width)
    told = unit * tl.load(gamma + column)[None, :] + tl.load(beta + column)[None, :]
    w_1 = held(w_1, width, width, "plain", precision)
    hidden = product_held(told, w_1, apart, width, width, "turned", precision)
    active, slope = gelu(hidden + tl.load(b_1 + column)[None, :], precision)
    give(right, 1, first, rows, active, tile, width)
    d_x = take(d_after, 0, first, rows, tile, width)
    give(left, 1, first, rows, d_x, tile, width)
    d_hidden = linear_backward(d_x, w_2, apart, width, width, precision) * slope
    give(left, 0, first, rows, d_hidden, tile, width)
    d_told = product_held(d_hidden, w_1, apart, width, width, "plain", precision)
    # Read and computed anew: kept, they would not fit the registers.
    unit, factor = normalised(take(before, 0, first, rows, tile, width), width)
    d_x = norm_backward(d_told * tl.load(gamma + column)[None, :], unit, factor, width)
    d_x += take(d_after, 0, first, rows, tile, width)
    give(d_before, 0, first, rows, d_x, tile, width)
