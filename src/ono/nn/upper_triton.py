"""The block of the upper flow: orthogonal attention (Eq. 5), then the FFN, both behind norms.

Forward:

    upper_moment  the sum over points of w ĝᵀ LN(h)
    upper_latent  times w_V, own channels only, times the k×k kernel: what the points will read,
                  already split into the parts that `product_with` takes
    upper_out     h + ĝ latent, h + FFN

and backward in the opposite order, first through the FFN. h may have several times for each sample
of ĝ.
"""

import triton
import triton.language as tl

from ono.nn.feed_forward_triton import feed_forward
from ono.nn.fused_triton import (
    norm_backward,
    normalised,
    own_points,
    point_weights,
    product,
    product_with,
    store_parts,
)


@triton.jit(do_not_specialize=["points", "steps", "times"])
def upper_moment(
    h,
    features,
    weights,
    gamma,
    beta,
    moments,
    points,
    steps,
    times,
    weighted: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    exact: tl.constexpr,
):
    """Sum w ĝᵀ LN(h) over the points of this program."""
    part, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source = sample // times
    column = tl.arange(0, width)
    gamma, beta = tl.load(gamma + column)[None, :], tl.load(beta + column)[None, :]
    total = tl.zeros((width, width), tl.float32)
    for step in range(steps):
        row = (part * steps + step) * tile + tl.arange(0, tile)
        inside = (row < points)[:, None] & (column < width)[None, :]
        at = row[:, None] * width + column[None, :]
        x = tl.load(h + sample * points * width + at, mask=inside, other=0.0)
        psi = tl.load(features + source * points * width + at, mask=inside, other=0.0)
        weight = point_weights(weights, source, row, points, weighted, tile)
        unit, _ = normalised(x, width)
        total += product(tl.trans(psi * weight[:, None]), unit * gamma + beta, exact)
    place = (sample * tl.num_programs(0) + part) * width
    tl.store(moments + (place + column)[:, None] * width + column[None, :], total)


@triton.jit(do_not_specialize=["parts", "times", "kernel_stride"])
def upper_latent(
    moments,
    w_v,
    kernel,
    moment,
    latent,
    parts,
    times,
    kernel_stride,
    share: tl.constexpr,
    width: tl.constexpr,
):
    """Turn the moment of one head into what its points read."""
    head, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    mode, own, column = tl.arange(0, share), tl.arange(0, share), tl.arange(0, width)
    at = (head * share + mode)[:, None] * width + column[None, :]
    total = tl.zeros((share, width), tl.float32)
    for part in range(parts):
        total += tl.load(moments + (sample * parts + part) * width * width + at)
    tl.store(moment + sample * width * width + at, total)
    value = tl.load(w_v + (head * share + own)[None, :] * width + column[:, None])
    value = tl.dot(total, value, input_precision="ieee").to(tl.float64)
    kernel += (sample // times) * kernel_stride + head * share * share
    matrix = tl.load(kernel + mode[:, None] * share + own[None, :])
    mixed = tl.sum(matrix[:, :, None] * value[None, :, :], 1)
    at = (sample * share + mode)[:, None] * width + head * share + own[None, :]
    plane = tl.num_programs(1).to(tl.int64) * share * width
    store_parts(latent, plane, at, mixed.to(tl.float32))


@triton.jit(do_not_specialize=["points", "times"])
def upper_out(
    h,
    features,
    latent,
    gamma,
    beta,
    w_1,
    b_1,
    w_2,
    b_2,
    apart,
    middle,
    after,
    points,
    times,
    share: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
    wide: tl.constexpr,
):
    """Add the attention, add the FFN."""
    sample, _, at, inside = own_points(points, tile, width)
    features += (sample // times - sample) * points * width
    psi = tl.load(features + at, mask=inside, other=0.0)
    x = tl.load(h + at, mask=inside, other=0.0)
    latent += sample * share * width
    plane = tl.num_programs(1).to(tl.int64) * share * width
    x += product_with(psi, latent, plane, share, width, "whole", wide)
    tl.store(middle + at, x, mask=inside)
    x = feed_forward(x, gamma, beta, w_1, b_1, w_2, b_2, apart, width, precision)
    tl.store(after + at, x, mask=inside)


@triton.jit(do_not_specialize=["tiles", "times", "kernel_stride"])
def upper_latent_backward(
    d_latents,
    moment,
    w_v,
    kernel,
    d_moment,
    d_w_v,
    d_kernel,
    tiles,
    times,
    kernel_stride,
    at_once: tl.constexpr,
    share: tl.constexpr,
    width: tl.constexpr,
):
    """Go back from what one head's points read to its moment, its part of w_V and its kernel."""
    head, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    mode, own, column = tl.arange(0, share), tl.arange(0, share), tl.arange(0, width)
    block = mode[:, None] * width + head * share + own[None, :]
    number = tl.arange(0, at_once)
    d_mixed = tl.zeros((share, share), tl.float32)
    for start in range(0, tiles, at_once):
        some = (sample * tiles + start + number)[:, None, None] * share * width + block[None, :, :]
        there = (start + number < tiles)[:, None, None] & (mode >= 0)[None, :, None]
        d_mixed += tl.sum(tl.load(d_latents + some, mask=there, other=0.0), 0)
    d_mixed = d_mixed.to(tl.float64)
    at = (head * share + mode)[:, None] * width + column[None, :]
    total = tl.load(moment + sample * width * width + at)
    weight = tl.load(w_v + at)
    value = tl.dot(total, tl.trans(weight), input_precision="ieee").to(tl.float64)
    kernel += (sample // times) * kernel_stride + head * share * share
    matrix = tl.load(kernel + mode[:, None] * share + own[None, :])
    d_value = tl.sum(matrix[:, :, None] * d_mixed[:, None, :], 0).to(tl.float32)
    plane = tl.num_programs(1).to(tl.int64) * width * width
    d_total = tl.dot(d_value, weight, input_precision="ieee")
    store_parts(d_moment, plane, sample * width * width + at, d_total)
    d_weight = tl.dot(tl.trans(d_value), total, input_precision="ieee")
    tl.store(d_w_v + sample * width * width + at, d_weight)
    d_matrix = tl.sum(d_mixed[:, None, :] * value[None, :, :], 2)
    d_kernel += (sample * tl.num_programs(0) + head) * share * share
    tl.store(d_kernel + mode[:, None] * share + own[None, :], d_matrix.to(tl.float32))


@triton.jit(do_not_specialize=["points", "times"])
def upper_moment_backward(
    d_moment,
    d_middle,
    h,
    features,
    latent,
    weights,
    gamma,
    beta,
    d_h,
    d_features,
    norms,
    points,
    times,
    weighted: tl.constexpr,
    share: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
):
    """Go back from the moment, and from what the points read, to h and ĝ."""
    sample, row, at, inside = own_points(points, tile, width)
    column = tl.arange(0, width)
    source = sample // times
    features += (source - sample) * points * width
    weight = point_weights(weights, source, row, points, weighted, tile)[:, None]
    gamma = tl.load(gamma + column)[None, :]
    samples = tl.num_programs(1).to(tl.int64)
    d_moment += sample * width * width
    latent += sample * share * width
    all_moments, all_latents = samples * width * width, samples * share * width
    unit, _ = normalised(tl.load(h + at, mask=inside, other=0.0), width)
    told = (unit * gamma + tl.load(beta + column)[None, :]) * weight
    d_psi = product_with(told, d_moment, all_moments, share, width, "turned", wide)
    d_x = tl.load(d_middle + at, mask=inside, other=0.0)
    d_psi += product_with(d_x, latent, all_latents, share, width, "whole_turned", wide)
    tl.store(d_features + at, d_psi, mask=inside)
    psi = tl.load(features + at, mask=inside, other=0.0) * weight
    d_told = product_with(psi, d_moment, all_moments, share, width, "plain", wide)
    # Read and computed anew: kept, they would not fit the registers.
    unit, factor = normalised(tl.load(h + at, mask=inside, other=0.0), width)
    place = (sample * tl.num_programs(0) + tl.program_id(0)) * 2 * width + column
    tl.store(norms + place, tl.sum(d_told * unit, 0))
    tl.store(norms + place + width, tl.sum(d_told, 0))
    d_x = norm_backward(d_told * gamma, unit, factor, width)
    d_x += tl.load(d_middle + at, mask=inside, other=0.0)
    tl.store(d_h + at, d_x, mask=inside)
