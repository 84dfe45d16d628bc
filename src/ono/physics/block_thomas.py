"""Many block-tridiagonal systems of small blocks at once, eliminated from both ends.

    P_k x_{k+1} + D_k x_k + N_k x_{k-1} = r_k

A line is cut in its middle. Each half is eliminated from its outer end inwards, and both take part
in every operation; in the middle the two ends solve a system of their own. A line of n blocks takes
n / 2 steps, and a reflected line gives the reflected answer to the last bit.

Every operation is a few multiplications of arrays whose last axes run over halves and lines: no
pivoting, no branches, no allocation, hence fit for a CUDA graph.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor


def _eliminate(panel: Tensor, rows: int) -> None:
    """Turn the panel [D | B] into [. | D^-1 B] in place, for D of `rows` rows."""
    for c in range(rows):
        panel[c, c + 1 :].div_(panel[c, c])
        if c + 1 < rows:
            panel[c + 1 :, c + 1 :].addcmul_(panel[c + 1 :, None, c], panel[c, c + 1 :], value=-1)
    for c in reversed(range(1, rows)):
        panel[:c, rows:].addcmul_(panel[:c, None, c], panel[c, rows:], value=-1)


def solve_lines(
    panels: Float[Tensor, "steps rows columns 2 *lines"],
    outer: Float[Tensor, "steps rows rows 2 *lines"],
) -> Float[Tensor, "steps rows 2 *lines"]:
    """Return x of all lines; panels [D | N | r] may be overwritten, P is `outer`.

    Steps count from the middle of a line, the axis after the columns counts its halves: P couples
    to the step after, N to the step before, N of step 0 to step 0 of the other half.

    >>> panels = torch.tensor([[2.0, 1.0, 3.0]]).reshape(1, 1, 3, 1, 1).repeat(2, 1, 1, 2, 1)
    >>> x = solve_lines(panels, torch.ones(2, 1, 1, 2, 1))  # four rows of [1 2 1] x = 3
    >>> x.squeeze().tolist()
    [[0.6..., 0.6...], [1.2..., 1.2...]]
    """
    lines = panels.shape[4:]
    fused = _fused() if panels.is_cuda and len(lines) == 2 else None
    if fused is not None:
        fused.inwards(panels, outer)
        panels[0, :, -1] = _middle(panels[0])
        fused.outwards(panels)
        return panels[:, :, -1]
    panels, outer = panels.flatten(4), outer.flatten(4)
    _inwards(panels, outer)
    panels[0, :, -1] = _middle(panels[0])
    _outwards(panels)
    x: Tensor = panels[:, :, -1].unflatten(-1, lines)
    return x


@cache
def _fused() -> ModuleType | None:
    """Return the sweeps as GPU kernels where Triton can be imported."""
    try:
        return import_module("ono.physics.block_thomas_triton")
    except ImportError:
        return None


def _inwards(panels: Tensor, outer: Tensor) -> None:
    """Turn every panel [D | N | r] into [. | W | y], W = D^-1 N, y = D^-1 r, from the outer end."""
    steps, rows = panels.shape[:2]
    for k in reversed(range(steps)):
        if k + 1 < steps:
            done = panels[k + 1]
            for m in range(rows):
                panels[k, :, :rows].addcmul_(outer[k, :, m, None], done[m, rows:-1], value=-1)
                panels[k, :, -1].addcmul_(outer[k, :, m], done[m, -1], value=-1)
        _eliminate(panels[k], rows)


def _middle(panel: Tensor) -> Tensor:
    """Return x of the innermost steps, where x_a = y_a - W_a x_b and x_b = y_b - W_b x_a."""
    rows = len(panel)
    w, y = panel[:, rows:-1], panel[:, -1]
    other_w, other_y = w.flip(2), y.flip(1)
    middle = torch.cat((torch.zeros_like(w), y[:, None]), 1)
    for m in range(rows):
        middle[m, m] += 1
        middle[:, :rows].addcmul_(w[:, m, None], other_w[m], value=-1)
        middle[:, -1].addcmul_(w[:, m], other_y[m], value=-1)
    _eliminate(middle, rows)
    return middle[:, -1]


def _outwards(panels: Tensor) -> None:
    """Turn y into x = y - W x_before, from the middle on, whose x is known."""
    steps, rows = panels.shape[:2]
    x = panels[:, :, -1]
    for k in range(1, steps):
        for m in range(rows):
            x[k].addcmul_(panels[k, :, rows + m], x[k - 1, m], value=-1)
