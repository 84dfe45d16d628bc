"""The ends of the operator: the networks that lift its inputs to channels, and its linear head.

Lifting goes through twice as many channels as come out of it, some of them at a time. Its inputs
are data and need no gradient, so its way back ends in sums over points: a program keeps those of
some channels and goes through several tiles. The head is a norm and so few products that they need
no tensor cores.
"""

import triton
import triton.language as tl

from ono.nn.fused_triton import gelu, norm_backward, normalised
from ono.nn.products_triton import product
from ono.nn.tiles_triton import give, take


@triton.jit
def some_hidden(
    x, w_1, b_1, channel, inputs: tl.constexpr, padded: tl.constexpr, precision: tl.constexpr
):
    """Return some of the hidden channels of a tile before their GELU."""
    feature = tl.arange(0, padded)[:, None]
    inside = (feature < inputs) & (channel >= 0)[None, :]
    weight = tl.load(w_1 + channel[None, :] * inputs + feature, mask=inside, other=0.0)
    return product(x, weight, precision) + tl.load(b_1 + channel)[None, :]


@triton.jit
def load_inputs(x, row, rows, inputs: tl.constexpr, padded: tl.constexpr):
    """Load the inputs of points, with a one behind the last and then zeros."""
    feature = tl.arange(0, padded)[None, :]
    inside = (row < rows)[:, None] & (feature < inputs)
    known = tl.load(x + row.to(tl.int64)[:, None] * inputs + feature, mask=inside, other=0.0)
    return tl.where(feature == inputs, 1.0, known)


@triton.jit(do_not_specialize=["rows"])
def lift(
    x,
    w_1,
    b_1,
    w_2,
    b_2,
    out,
    rows,
    inputs: tl.constexpr,
    padded: tl.constexpr,
    some: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Lift one tile of points."""
    first = tl.program_id(0) * tile
    row, column = first + tl.arange(0, tile), tl.arange(0, width)
    known = load_inputs(x, row, rows, inputs, padded)
    total = tl.zeros((tile, width), tl.float32) + tl.load(b_2 + column)[None, :]
    for block in range(2 * width // some):
        channel = block * some + tl.arange(0, some)
        hidden = some_hidden(known, w_1, b_1, channel, inputs, padded, precision)
        active, _ = gelu(hidden, precision)
        weight = tl.load(w_2 + channel[:, None] + column[None, :] * (2 * width))
        total += product(active, weight, precision)
    give(out, 0, first, rows, total, tile, width)


@triton.jit(do_not_specialize=["rows", "steps"])
def lift_backward(
    d_out,
    x,
    w_1,
    b_1,
    w_2,
    sums,
    left,
    right,
    rows,
    steps,
    inputs: tl.constexpr,
    padded: tl.constexpr,
    some: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
    wide: tl.constexpr,
):
    """Go back through some hidden channels of a network at some tiles.

    sums receives the gradients of w_1 and b_1 and, below, that of b_2. That of w_2 is left to
    `weight_gradients`: left receives what met it, in two halves, and right d out.
    """
    part, block = tl.program_id(0), tl.program_id(1)
    feature, column = tl.arange(0, padded)[None, :], tl.arange(0, width)
    channel = block * some + tl.arange(0, some)
    plane = tl.cast(rows, tl.int64) * width
    kind = left.dtype.element_ty
    left += (block * some // width) * plane
    d_w_1, d_b_2 = tl.zeros((some, padded), tl.float32), tl.zeros((width,), tl.float32)
    weight = tl.load(w_2 + column[:, None] * (2 * width) + channel[None, :])
    for step in range(steps):
        first = (part * steps + step) * tile
        row = first + tl.arange(0, tile)
        known = load_inputs(x, row, rows, inputs, padded)
        hidden = some_hidden(known, w_1, b_1, channel, inputs, padded, wide)
        active, slope = gelu(hidden, precision)
        at = row.to(tl.int64)[:, None] * width + (channel % width)[None, :]
        tl.store(left + at, active.to(kind), mask=(row < rows)[:, None] & (channel >= 0)[None, :])
        gradient = take(d_out, 0, first, rows, tile, width)
        if block == 0:
            give(right, 0, first, rows, gradient, tile, width)
            d_b_2 += tl.sum(gradient, 0)
        d_hidden = product(gradient, weight, precision) * slope
        d_w_1 += product(tl.trans(d_hidden), known, wide)
    sums += part * (2 * width * (inputs + 1) + width)
    place = tl.where(feature < inputs, channel[:, None] * inputs + feature, 2 * width * inputs)
    place += tl.where(feature < inputs, 0, channel[:, None])
    tl.store(sums + place, d_w_1, mask=(channel >= 0)[:, None] & (feature <= inputs))
    if block == 0:
        tl.store(sums + 2 * width * (inputs + 1) + column, d_b_2)


@triton.jit(do_not_specialize=["rows"])
def head(
    h,
    gamma,
    beta,
    weight,
    bias,
    out,
    rows,
    outputs: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
):
    """Normalise and project one tile of points."""
    first = tl.program_id(0) * tile
    row, column = first + tl.arange(0, tile), tl.arange(0, width)
    unit, _ = normalised(take(h, 0, first, rows, tile, width), width)
    told = unit * tl.load(gamma + column)[None, :] + tl.load(beta + column)[None, :]
    for output in tl.static_range(outputs):
        value = tl.sum(told * tl.load(weight + output * width + column)[None, :], 1)
        value += tl.load(bias + output)
        tl.store(out + row.to(tl.int64) * outputs + output, value, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def head_backward(
    d_out,
    h,
    gamma,
    weight,
    d_h,
    sums,
    rows,
    outputs: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
):
    """Go back to one tile of h; sums receives those of d out times unit h, then those of d out."""
    first = tl.program_id(0) * tile
    row, column = first + tl.arange(0, tile), tl.arange(0, width)
    unit, factor = normalised(take(h, 0, first, rows, tile, width), width)
    d_told = tl.zeros((tile, width), tl.float32)
    sums += tl.program_id(0) * outputs * (width + 1)
    for output in tl.static_range(outputs):
        place = d_out + row.to(tl.int64) * outputs + output
        given = tl.load(place, mask=row < rows, other=0.0)
        d_told += given[:, None] * tl.load(weight + output * width + column)[None, :]
        tl.store(sums + output * width + column, tl.sum(given[:, None] * unit, 0))
        tl.store(sums + outputs * width + output, tl.sum(given, 0))
    d_x = norm_backward(d_told * tl.load(gamma + column)[None, :], unit, factor, width)
    give(d_h, 0, first, rows, d_x, tile, width)


@triton.jit
def head_gradients(
    sums,
    gamma,
    beta,
    weight,
    d_gamma,
    d_beta,
    d_weight,
    outputs: tl.constexpr,
    width: tl.constexpr,
):
    """Turn the sums of `head_backward` into the gradients of the norm and the weight."""
    column = tl.arange(0, width)
    scale, shift = tl.load(gamma + column), tl.load(beta + column)
    of_scale, of_shift = tl.zeros((width,), tl.float32), tl.zeros((width,), tl.float32)
    for output in tl.static_range(outputs):
        along = tl.load(sums + output * width + column)
        total = tl.load(sums + outputs * width + output)
        row = tl.load(weight + output * width + column)
        of_scale += row * along
        of_shift += row * total
        tl.store(d_weight + output * width + column, scale * along + shift * total)
    tl.store(d_gamma + column, of_scale)
    tl.store(d_beta + column, of_shift)
