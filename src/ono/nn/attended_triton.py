"""The NN block of the lower flow around an attention that is not a kernel of ours.

    lower_in              LN, q k v (of `lower_triton`)
    the attention         torch, there and back
    attended_out          g + attention, g + FFN, ĝ

Backward it is the FFN, then `attended_out_backward`, the attention, `attended_in_backward`. What
they leave for the gradients of the weights is what `lower_triton` leaves.
"""

import triton
import triton.language as tl

from ono.nn.lower_triton import back_to_g, finish
from ono.nn.products_triton import linear_backward
from ono.nn.tiles_triton import give, own_tile, take


@triton.jit(do_not_specialize=["points"])
def attended_out(
    g,
    mixed,
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
    modes: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Add what the attention has mixed, add the FFN, project to ĝ."""
    sample, first = own_tile(tile)
    column = tl.arange(0, width)
    told = take(mixed, sample, first, points, tile, width).to(tl.float32)
    finish(
        told, g, w_out, b_out, gamma, beta, w_1, b_1, w_2, b_2, w_q, b_q, apart, middle, after,
        features, sample, first, points, column, modes, tile, width, precision,
    )  # fmt: skip


@triton.jit(do_not_specialize=["points"])
def attended_out_backward(
    d_middle,
    mixed,
    w_out,
    apart,
    d_mixed,
    left,
    right,
    points,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Go back to what the attention has mixed; left 3 is dg behind it, right 1 that mixture."""
    sample, first = own_tile(tile)
    samples = tl.num_programs(1)
    told = take(mixed, sample, first, points, tile, width)
    give(right, samples + sample, first, points, told, tile, width)
    d_x = take(d_middle, sample, first, points, tile, width)
    give(left, 3 * samples + sample, first, points, d_x, tile, width)
    d_told = linear_backward(d_x, w_out, apart, width, width, precision)
    give(d_mixed, sample, first, points, d_told, tile, width)


@triton.jit(do_not_specialize=["points"])
def attended_in_backward(
    d_middle,
    d_q,
    d_k,
    d_v,
    g,
    gamma,
    w_qkv,
    apart,
    d_g,
    left,
    right,
    points,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Go back from q, k and v to g; left receives their gradients, right the normalised g."""
    sample, first = own_tile(tile)
    samples = tl.num_programs(1)
    d_query = take(d_q, sample, first, points, tile, width).to(tl.float32)
    give(left, sample, first, points, d_query, tile, width)
    d_told = linear_backward(d_query, w_qkv, apart, width, width, precision)
    d_key = take(d_k, sample, first, points, tile, width).to(tl.float32)
    give(left, samples + sample, first, points, d_key, tile, width)
    d_told += linear_backward(d_key, w_qkv, apart, width, width, precision, width)
    d_value = take(d_v, sample, first, points, tile, width).to(tl.float32)
    give(left, 2 * samples + sample, first, points, d_value, tile, width)
    d_told += linear_backward(d_value, w_qkv, apart, width, width, precision, 2 * width)
    back_to_g(d_told, d_middle, g, gamma, d_g, right, sample, first, points, tile, width)
