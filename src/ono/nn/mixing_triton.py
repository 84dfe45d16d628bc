"""From the covariance of ĝ to the k×k kernel of a layer, and back (Eqs. 7-9).

A program holds the matrices of one head. All of them are float64: covariances of learned features
reach condition numbers of 1e6 and more. Elimination goes row by row: few warps do it fastest, as
they do not have to wait for each other.
"""

import triton
import triton.language as tl


@triton.jit
def row_of(a, number, index):
    """Return one row of a matrix."""
    return tl.sum(tl.where((index == number)[:, None], a, 0.0), 0)


@triton.jit
def column_of(a, number, index):
    """Return one column of a matrix."""
    return tl.sum(tl.where((index == number)[None, :], a, 0.0), 1)


@triton.jit
def matmul(a, b, share: tl.constexpr):
    """Return a b; the middle axis of all products at once, if that is not too much."""
    if share <= 16:
        return tl.sum(a[:, :, None] * b[None, :, :], 1)
    else:
        index = tl.arange(0, share)
        total = tl.zeros((share, share), tl.float64)
        for number in range(share):
            total += column_of(a, number, index)[:, None] * row_of(b, number, index)[None, :]
        return total


@triton.jit
def eigenvalues(raw_mu, head, share: tl.constexpr):
    """Return μ = softplus of its parameter, and the derivative."""
    raw = tl.load(raw_mu + head * share + tl.arange(0, share)).to(tl.float64)
    return tl.where(raw > 20, raw, tl.log(1 + tl.exp(raw))), 1 / (1 + tl.exp(-raw))


@triton.jit
def mean_diagonal(a, identity, share: tl.constexpr):
    """Return the mean of the diagonal of a matrix."""
    return tl.sum(tl.sum(a * identity, 1), 0) / share


@triton.jit(do_not_specialize=["tiles"])
def gram_sums(
    grams, totals, tiles, at_once: tl.constexpr, share: tl.constexpr, width: tl.constexpr
):
    """Add up one row of <ĝ, ĝ> within heads, from [tiles share width] to [heads share share]."""
    row, group = tl.program_id(0), tl.program_id(1)
    number, column = tl.arange(0, at_once), tl.arange(0, width)
    total = tl.zeros((width,), tl.float64)
    for start in range(0, tiles, at_once):
        place = ((group * tiles + start + number).to(tl.int64) * share + row) * width
        there = (start + number < tiles)[:, None] & (column >= 0)[None, :]
        some = tl.load(grams + place[:, None] + column[None, :], mask=there, other=0.0)
        total += tl.sum(some.to(tl.float64), 0)
    head = group * (width // share) + column // share
    tl.store(totals + (head * share + row) * share + column % share, total)


@triton.jit(do_not_specialize=["samples"])
def mixing(
    totals,
    raw_mu,
    factors,
    kernels,
    failures,
    samples,
    white: tl.constexpr,
    ridge: tl.constexpr,
    share: tl.constexpr,
):
    """Factor the mean of <ĝ, ĝ> over samples, for one head, and make L⁻ᵀ diag(μ) L⁻¹."""
    head, group, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    index = tl.arange(0, share)
    identity = tl.where(index[:, None] == index[None, :], 1.0, 0.0).to(tl.float64)
    own = (group * heads + head) * share * share + index[:, None] * share + index[None, :]
    mu, _ = eigenvalues(raw_mu, head, share)
    kernel, inverse, failed = mu[:, None] * identity, identity, 0
    if white:
        kernel = tl.zeros((share, share), tl.float64)
        total = tl.load(totals + own)
        a = (total + tl.trans(total)) / (2 * samples).to(tl.float64)
        scale = mean_diagonal(a, identity, share)
        scale = tl.where(scale > 0, scale, 1.0)
        a = a / scale + ridge * identity
        # Elimination: what makes a triangular makes L⁻¹ of the identity, row by row.
        for step in range(share):
            row, under = row_of(a, step, index), column_of(a, step, index)
            pivot = tl.sum(tl.where(index == step, row, 0.0), 0)
            failed += tl.where(pivot > 0, 0, 1)
            factor = 1 / tl.sqrt(pivot)
            below = tl.where(index > step, under, 0.0) * factor
            a -= below[:, None] * (row * factor)[None, :]
            done = row_of(inverse, step, index) * factor
            cleared = inverse - below[:, None] * done[None, :]
            inverse = tl.where((index == step)[:, None], done[None, :], cleared)
            weight = tl.sum(tl.where(index == step, mu, 0.0), 0)
            kernel += weight * done[:, None] * done[None, :]
        inverse, kernel = inverse / tl.sqrt(scale), kernel / scale
    tl.store(factors + own, inverse)
    tl.store(kernels + own, kernel)
    tl.store(failures + group * heads + head, failed)


@triton.jit(do_not_specialize=["rows", "samples"])
def mixing_backward(
    d_kernels,
    factors,
    raw_mu,
    d_grams,
    d_raw_mu,
    rows,
    samples,
    at_once: tl.constexpr,
    white: tl.constexpr,
    ridge: tl.constexpr,
    share: tl.constexpr,
    width: tl.constexpr,
):
    """Go back to <ĝ, ĝ> of each of the samples that were averaged, and to the eigenvalues.

    The gradient of the kernel comes in `rows` parts to be added.
    """
    head, group, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    index, number = tl.arange(0, share), tl.arange(0, at_once)
    block = index[:, None] * share + index[None, :]
    d_kernel = tl.zeros((share, share), tl.float64)
    for start in range(0, rows, at_once):
        place = ((group * rows + start + number).to(tl.int64) * heads + head) * share * share
        there = (start + number < rows)[:, None, None] & (index >= 0)[None, :, None]
        some = tl.load(d_kernels + place[:, None, None] + block[None, :, :], there, other=0.0)
        d_kernel += tl.sum(some.to(tl.float64), 0)
    inverse = tl.load(factors + (group * heads + head) * share * share + block)
    mu, slope = eigenvalues(raw_mu, head, share)
    identity = tl.where(index[:, None] == index[None, :], 1.0, 0.0).to(tl.float64)
    turned = tl.trans(inverse)
    both = matmul(matmul(inverse, d_kernel + tl.trans(d_kernel), share), turned, share)
    d_mu = 0.5 * tl.sum(both * identity, 1)
    tl.store(d_raw_mu + (group * heads + head) * share + index, (d_mu * slope).to(tl.float32))
    d_gram = tl.zeros((share, share), tl.float64)
    if white:
        # The diagonal belongs to both halves.
        half = tl.where(index[:, None] >= index[None, :], 1.0, 0.0) - 0.5 * identity
        lower = matmul(matmul(turned, mu[:, None] * both * half, share), inverse, share)
        d_ridged = -0.5 * (lower + tl.trans(lower))
        d_gram = d_ridged + ridge * mean_diagonal(d_ridged, identity, share) * identity
        d_gram = d_gram / samples.to(tl.float64)
    block = index[:, None] * width + head * share + index[None, :]
    for sample in range(samples):
        place = (group * samples + sample).to(tl.int64) * share * width
        tl.store(d_grams + place + block, d_gram.to(tl.float32))
