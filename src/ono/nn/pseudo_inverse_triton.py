"""The pseudo-inverse of small matrices as one GPU kernel there and one back: a program for each.

A tile may be larger than its matrix. Around it are zeros, which all products leave there.
"""

import triton
import triton.language as tl

from ono.nn.products_triton import product


@triton.jit
def _places(size: tl.constexpr, tile: tl.constexpr):
    """Return where the entries of a matrix lie, which of them there are, and the identity."""
    row, column = tl.arange(0, tile)[:, None], tl.arange(0, tile)[None, :]
    inside = (row < size) & (column < size)
    return row * size + column, inside, tl.where(row == column, 1.0, 0.0)


@triton.jit
def _polynomials(p, identity, precision: tl.constexpr):
    """Return 15 - P (7 - P), and ¼ (13 - P times that)."""
    inner = 15 * identity - 7 * p + product(p, p, precision)
    return inner, 3.25 * identity - 0.25 * product(p, inner, precision)


@triton.jit
def inverted(
    matrix,
    inverse,
    kept,
    iterations,
    size: tl.constexpr,
    tile: tl.constexpr,
    precision: tl.constexpr,
):
    """Iterate from Mᵀ, scaled; what each iteration begins with is kept if there is a place."""
    number, matrices = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    at, inside, identity = _places(size, tile)
    m = tl.load(matrix + number * size * size + at, mask=inside, other=0.0)
    x = tl.trans(m) / (tl.max(tl.sum(tl.abs(m), 1)) * tl.max(tl.sum(tl.abs(m), 0)))
    for step in range(iterations):
        if kept is not None:
            begin = (tl.cast(step, tl.int64) * matrices + number) * size * size
            tl.store(kept + begin + at, x, mask=inside)
        _, factor = _polynomials(product(m, x, precision), identity, precision)
        x = product(x, factor, precision)
    tl.store(inverse + number * size * size + at, x, mask=inside)


@triton.jit
def inverted_backward(
    d_inverse,
    matrix,
    kept,
    d_matrix,
    iterations,
    size: tl.constexpr,
    tile: tl.constexpr,
    precision: tl.constexpr,
):
    """Go back through the iterations, each made again from what it began with, and the scaling."""
    number, matrices = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    at, inside, identity = _places(size, tile)
    matrix += number * size * size
    d_x = tl.load(d_inverse + number * size * size + at, mask=inside, other=0.0)
    d_m = tl.zeros((tile, tile), tl.float32)
    for done in range(1, iterations + 1):
        begin = (tl.cast(iterations - done, tl.int64) * matrices + number) * size * size
        m = tl.load(matrix + at, mask=inside, other=0.0)
        x = tl.load(kept + begin + at, mask=inside, other=0.0)
        p = product(m, x, precision)
        d_outer = -0.25 * product(tl.trans(x), d_x, precision)
        inner, factor = _polynomials(p, identity, precision)
        d_x = product(d_x, tl.trans(factor), precision)
        d_p = product(d_outer, tl.trans(inner), precision)
        d_inner = product(tl.trans(p), d_outer, precision)
        d_p += product(tl.trans(p), d_inner, precision)
        d_p += product(d_inner, tl.trans(p), precision) - 7 * d_inner
        # Volatile, so that both are read again: held, they take twice the shared memory.
        x = tl.load(kept + begin + at, mask=inside, other=0.0, volatile=True)
        d_m += product(d_p, tl.trans(x), precision)
        m = tl.load(matrix + at, mask=inside, other=0.0, volatile=True)
        d_x += product(tl.trans(m), d_p, precision)
    m = tl.load(matrix + at, mask=inside, other=0.0)
    d_m += _scaling_backward(m, tl.trans(d_x))
    tl.store(d_matrix + number * size * size + at, d_m, mask=inside)


@triton.jit
def _scaling_backward(m, gradient):
    """Return the gradient before M / (largest sum of a row · of a column) from that behind it.

    Sums that are equally large share theirs.
    """
    rows, columns = tl.sum(tl.abs(m), 1), tl.sum(tl.abs(m), 0)
    row, column = tl.max(rows), tl.max(columns)
    d_m = gradient / (row * column)
    d_norm = -tl.sum(d_m * m) / (row * column)
    of_row, of_column = (rows == row).to(tl.float32), (columns == column).to(tl.float32)
    d_sizes = (of_row * (column / tl.sum(of_row)))[:, None]
    d_sizes = d_norm * (d_sizes + (of_column * (row / tl.sum(of_column)))[None, :])
    return d_m + tl.where(m > 0, d_sizes, tl.where(m < 0, -d_sizes, 0.0))
