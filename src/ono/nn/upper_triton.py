"""The block of the upper flow: orthogonal attention (Eq. 5), then the FFN, both behind norms.

Forward:

    upper_moment  the sums over points of w ĝᵀ u, where u is the normalised h, and of w ĝ
    upper_latent  the moment of LN(h), times w_V, own channels only, times the k×k kernel: what the
                  points will read, already split into the parts that `product_with` takes
    upper_out     h + ĝ latent, h + FFN

and backward in the opposite order, first through the FFN. h may have several times for each sample
of ĝ.
"""

import triton
import triton.language as tl

from ono.nn.feed_forward_triton import feed_forward
from ono.nn.fused_triton import norm_backward, normalised
from ono.nn.products_triton import product, product_with, store_parts
from ono.nn.tiles_triton import give, own_tile, point_weights, take


@triton.jit(do_not_specialize=["points", "steps", "times"])
def upper_moment(
    h,
    features,
    weights,
    moments,
    means,
    points,
    steps,
    times,
    weighted: tl.constexpr,
    modes: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    exact: tl.constexpr,
):
    """Sum w ĝᵀ u and w ĝ over the points of this program."""
    part, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source = sample // times
    mode, column = tl.arange(0, modes), tl.arange(0, width)
    total, mean = tl.zeros((modes, width), tl.float32), tl.zeros((modes,), tl.float32)
    for step in range(steps):
        first = (part * steps + step) * tile
        x = take(h, sample, first, points, tile, width)
        psi = take(features, source, first, points, tile, modes)
        weight = point_weights(weights, source, first, points, weighted, tile)
        psi *= weight[:, None]
        unit, _ = normalised(x, width)
        total += product(tl.trans(psi), unit, exact)
        mean += tl.sum(psi, 0)
    place = (sample * tl.num_programs(0) + part) * modes
    tl.store(moments + (place + mode)[:, None] * width + column[None, :], total)
    tl.store(means + place + mode, mean)


@triton.jit
def scaled(moment, mean, gamma, beta, width: tl.constexpr):
    """Return the moment of LN(h) from that of the normalised h."""
    column = tl.arange(0, width)
    shift = mean[:, None] * tl.load(beta + column)[None, :]
    return moment * tl.load(gamma + column)[None, :] + shift


@triton.jit(do_not_specialize=["parts", "times", "kernel_stride"])
def upper_latent(
    moments,
    means,
    gamma,
    beta,
    w_v,
    kernel,
    moment,
    mean,
    latent,
    parts,
    times,
    kernel_stride,
    share: tl.constexpr,
    modes: tl.constexpr,
    width: tl.constexpr,
):
    """Turn the moment of a head into what its points read, in `share` of its channels."""
    block, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    head = block * modes // width
    mode, own, column = tl.arange(0, share), tl.arange(0, share), tl.arange(0, width)
    at = (head * share + mode)[:, None] * width + column[None, :]
    total, known = tl.zeros((share, width), tl.float32), tl.zeros((share,), tl.float32)
    for part in range(parts):
        place = (sample * parts + part) * modes
        total += tl.load(moments + place * width + at)
        known += tl.load(means + place + head * share + mode)
    if block * modes % width == 0:
        tl.store(moment + sample * modes * width + at, total)
        tl.store(mean + sample * modes + head * share + mode, known)
    total = scaled(total, known, gamma, beta, width)
    value = tl.load(w_v + (block * share + own)[None, :] * width + column[:, None])
    value = tl.dot(total, value, input_precision="ieee").to(tl.float64)
    kernel += (sample // times) * kernel_stride + head * share * share
    matrix = tl.load(kernel + mode[:, None] * share + own[None, :])
    mixed = tl.sum(matrix[:, :, None] * value[None, :, :], 1)
    at = (sample * share + mode)[:, None] * width + block * share + own[None, :]
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
    modes: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
    wide: tl.constexpr,
):
    """Add the attention, add the FFN."""
    sample, first = own_tile(tile)
    psi = take(features, sample // times, first, points, tile, modes)
    x = take(h, sample, first, points, tile, width)
    latent += sample * share * width
    plane = tl.num_programs(1).to(tl.int64) * share * width
    x += product_with(psi, latent, plane, share, modes, width, "whole", wide)
    give(middle, sample, first, points, x, tile, width)
    x = feed_forward(x, gamma, beta, w_1, b_1, w_2, b_2, apart, width, precision)
    give(after, sample, first, points, x, tile, width)


@triton.jit(do_not_specialize=["tiles", "times", "kernel_stride"])
def upper_latent_backward(
    d_latents,
    moment,
    mean,
    gamma,
    beta,
    w_v,
    kernel,
    d_moment,
    norms,
    d_w_v,
    d_kernel,
    tiles,
    times,
    kernel_stride,
    at_once: tl.constexpr,
    share: tl.constexpr,
    modes: tl.constexpr,
    width: tl.constexpr,
):
    """Go back from what points read in `share` channels to the moment, w_V and the kernel.

    What a head reads in other channels belongs to the same moment and the same kernel: if it has
    more, their gradients are parts, [samples parts ...], to be added. norms receives the gradients
    of scale and shift of the norm, in parts too.
    """
    block, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    head, pieces = block * modes // width, width // modes
    mode, own, column = tl.arange(0, share), tl.arange(0, share), tl.arange(0, width)
    d_block = mode[:, None] * width + block * share + own[None, :]
    number = tl.arange(0, at_once)
    d_mixed = tl.zeros((share, share), tl.float32)
    for start in range(0, tiles, at_once):
        place = (sample * tiles + start + number)[:, None, None] * share * width
        there = (start + number < tiles)[:, None, None] & (mode >= 0)[None, :, None]
        d_mixed += tl.sum(tl.load(d_latents + place + d_block[None, :, :], there, other=0.0), 0)
    d_mixed = d_mixed.to(tl.float64)
    at = (head * share + mode)[:, None] * width + column[None, :]
    met = tl.load(moment + sample * modes * width + at)
    known = tl.load(mean + sample * modes + head * share + mode)
    total = scaled(met, known, gamma, beta, width)
    at_values = (block * share + own)[:, None] * width + column[None, :]
    weight = tl.load(w_v + at_values)
    value = tl.dot(total, tl.trans(weight), input_precision="ieee").to(tl.float64)
    kernel += (sample // times) * kernel_stride + head * share * share
    matrix = tl.load(kernel + mode[:, None] * share + own[None, :])
    d_value = tl.sum(matrix[:, :, None] * d_mixed[:, None, :], 0).to(tl.float32)
    d_total = tl.dot(d_value, weight, input_precision="ieee")
    place = (sample * tl.num_programs(0) + block) * 2 * width + column
    tl.store(norms + place, tl.sum(d_total * met, 0))
    tl.store(norms + place + width, tl.sum(d_total * known[:, None], 0))
    piece = sample * pieces + block % pieces
    if pieces == 1:
        plane = tl.num_programs(1).to(tl.int64) * modes * width
        store_parts(d_moment, plane, sample * modes * width + at, d_total)
    else:
        tl.store(d_moment + piece * modes * width + at, d_total)
    d_weight = tl.dot(tl.trans(d_value), total, input_precision="ieee")
    tl.store(d_w_v + sample * width * width + at_values, d_weight)
    d_matrix = tl.sum(d_mixed[:, None, :] * value[None, :, :], 2)
    d_kernel += (piece * (modes // share) + head) * share * share
    tl.store(d_kernel + mode[:, None] * share + own[None, :], d_matrix.to(tl.float32))


@triton.jit
def added(parts, count: tl.constexpr, modes: tl.constexpr, width: tl.constexpr):
    """Load the sum of several matrices [modes width]."""
    mode, column = tl.arange(0, modes), tl.arange(0, width)
    at = mode[:, None] * width + column[None, :]
    total = tl.load(parts + at)
    for part in tl.static_range(1, count):
        total += tl.load(parts + part * modes * width + at)
    return total


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
    points,
    times,
    weighted: tl.constexpr,
    share: tl.constexpr,
    modes: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
):
    """Go back from the moment, and from what the points read, to h and ĝ."""
    sample, first = own_tile(tile)
    column = tl.arange(0, width)
    source = sample // times
    weight = point_weights(weights, source, first, points, weighted, tile)[:, None]
    gamma = tl.load(gamma + column)[None, :]
    samples = tl.num_programs(1).to(tl.int64)
    latent += sample * share * width
    all_latents, all_moments = samples * share * width, samples * modes * width
    unit, _ = normalised(take(h, sample, first, points, tile, width), width)
    told = (unit * gamma + tl.load(beta + column)[None, :]) * weight
    if modes == width:
        d_moment += sample * modes * width
        d_psi = product_with(told, d_moment, all_moments, share, modes, width, "turned", wide)
    else:
        d_all = added(d_moment + sample * width * width, width // modes, modes, width)
        d_psi = product(told, tl.trans(d_all), wide)
    d_x = take(d_middle, sample, first, points, tile, width)
    d_psi += product_with(d_x, latent, all_latents, share, modes, width, "whole_turned", wide)
    give(d_features, sample, first, points, d_psi, tile, modes)
    psi = take(features, source, first, points, tile, modes) * weight
    if modes == width:
        d_told = product_with(psi, d_moment, all_moments, share, modes, width, "plain", wide)
    else:
        d_told = product(psi, d_all, wide)
    # Read and computed anew: kept, they would not fit the registers.
    unit, factor = normalised(take(h, sample, first, points, tile, width), width)
    d_x = norm_backward(d_told * gamma, unit, factor, width)
    d_x += take(d_middle, sample, first, points, tile, width)
    give(d_h, sample, first, points, d_x, tile, width)
