"""The two sweeps of `block_thomas` as one GPU kernel each: a thread per half line.

A line is short and its steps follow each other, so done by array operations most of the time goes
into starting them. Here the blocks of a step live in registers, as tuples of numbers row by row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 64


@triton.jit
def _load(start, row_stride, column_stride, rows: tl.constexpr, columns: tl.constexpr, inside):
    block = ()
    for i in tl.static_range(rows):
        for j in tl.static_range(columns):
            entry = tl.load(start + i * row_stride + j * column_stride, mask=inside, other=0.0)
            block = block + (entry,)
    return block


@triton.jit
def _subtract_product(a, b, c, rows: tl.constexpr, columns: tl.constexpr, inner: tl.constexpr):
    """Return A - B C for blocks of rows x columns, rows x inner, inner x columns."""
    result = ()
    for i in tl.static_range(rows):
        for j in tl.static_range(columns):
            entry = a[i * columns + j]
            for m in tl.static_range(inner):
                entry -= b[i * inner + m] * c[m * columns + j]
            result = result + (entry,)
    return result


@triton.jit
def _eliminate_column(
    d, b, at: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, width: tl.constexpr
):
    """Do one step of Gauss-Jordan for column `at` of D, on a block B of `width` columns."""
    result = ()
    for i in tl.static_range(rows):
        for j in tl.static_range(width):
            scaled = b[at * width + j] / d[at * columns + at]
            if i == at:
                entry = scaled
            else:
                entry = b[i * width + j] - d[i * columns + at] * scaled
            result = result + (entry,)
    return result


@triton.jit
def _place(lines, others, batch, half_stride, other_stride, block: tl.constexpr):
    """Return where the half lines of this program begin, and which of them exist."""
    line = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    half, other = line // (others * batch), (line // batch) % others
    return half * half_stride + other * other_stride + line % batch, line < lines


@triton.jit
def _inwards(
    panels,
    outer,
    steps,
    lines,
    others,
    batch,
    step_stride,
    row_stride,
    column_stride,
    half_stride,
    other_stride,
    outer_row_stride,
    rows: tl.constexpr,
    block: tl.constexpr,
):
    """Turn every panel [D | N | r] into [. | W | y] from the outer end of the half lines."""
    begin, inside = _place(lines, others, batch, half_stride, other_stride, block)
    zero = tl.load(panels + begin, mask=inside, other=1.0) * 0
    w = ()
    y = ()
    for _ in tl.static_range(rows * rows):
        w = w + (zero,)
    for _ in tl.static_range(rows):
        y = y + (zero,)
    for step in range(steps):
        here = begin + (steps - 1 - step).to(tl.int64) * step_stride
        last = here + 2 * rows * column_stride
        d = _load(panels + here, row_stride, column_stride, rows, rows, inside)
        n = _load(
            panels + here + rows * column_stride, row_stride, column_stride, rows, rows, inside
        )
        r = _load(panels + last, row_stride, column_stride, rows, 1, inside)
        if step > 0:
            p = _load(outer + here, outer_row_stride, column_stride, rows, rows, inside)
            d = _subtract_product(d, p, w, rows, rows, rows)
            r = _subtract_product(r, p, y, rows, 1, rows)
        for at in tl.static_range(rows):
            n = _eliminate_column(d, n, at, rows, rows, rows)
            r = _eliminate_column(d, r, at, rows, rows, 1)
            d = _eliminate_column(d, d, at, rows, rows, rows)
        w = n
        y = r
        for i in tl.static_range(rows):
            for j in tl.static_range(rows):
                to = here + i * row_stride + (rows + j) * column_stride
                tl.store(panels + to, w[i * rows + j], mask=inside)
            tl.store(panels + last + i * row_stride, y[i], mask=inside)


@triton.jit
def _outwards(
    panels,
    steps,
    lines,
    others,
    batch,
    step_stride,
    row_stride,
    column_stride,
    half_stride,
    other_stride,
    rows: tl.constexpr,
    block: tl.constexpr,
):
    """Turn y into x = y - W x_before, from the middle on, whose x is known."""
    begin, inside = _place(lines, others, batch, half_stride, other_stride, block)
    last = begin + 2 * rows * column_stride
    x = _load(panels + last, row_stride, column_stride, rows, 1, inside)
    for k in range(1, steps):
        here = panels + begin + k.to(tl.int64) * step_stride
        w = _load(here + rows * column_stride, row_stride, column_stride, rows, rows, inside)
        here += 2 * rows * column_stride
        y = _load(here, row_stride, column_stride, rows, 1, inside)
        x = _subtract_product(y, w, x, rows, 1, rows)
        for i in tl.static_range(rows):
            tl.store(here + i * row_stride, x[i], mask=inside)


def inwards(panels: Tensor, outer: Tensor) -> None:
    """Eliminate from the outer ends, in place: panels and outer [steps rows columns 2 k batch].

    Beside the rows they must be laid out alike, the batch without gaps.
    """
    sizes, strides = _layout(panels)
    step, row, column, half, other = outer.stride()[:5]
    assert (step, column, half, other) == (strides[0], *strides[2:]), "laid out differently"
    with torch.cuda.device(panels.device):
        _inwards[_grid](panels, outer, *sizes, *strides, row, panels.shape[1], _BLOCK, num_warps=2)


def outwards(panels: Tensor) -> None:
    """Substitute back, in place, from the middle: its x stands in the last column of step 0."""
    sizes, strides = _layout(panels)
    with torch.cuda.device(panels.device):
        _outwards[_grid](panels, *sizes, *strides, panels.shape[1], _BLOCK, num_warps=2)


def _layout(panels: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (steps, half lines, others, batch) and the strides of all axes but the last."""
    steps, _, _, halves, others, batch = panels.shape
    assert panels.stride(-1) == 1 or batch == 1
    return (steps, halves * others * batch, others, batch), panels.stride()[:5]


def _grid(launch: dict[str, int]) -> tuple[int]:
    return (triton.cdiv(launch["lines"], launch["block"]),)
