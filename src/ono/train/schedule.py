"""Learning rates as pure functions of the step, so that a resumed run needs no extra state."""

from __future__ import annotations

import math
from typing import Literal


def learning_rate(
    step: int,
    steps: int,
    peak: float,
    *,
    kind: Literal["onecycle", "cosine", "constant"] = "onecycle",
    warmup: float = 0.3,
    start_factor: float = 25.0,
    final_factor: float = 1e4,
) -> float:
    """Return the rate of a step (from 0).

    onecycle: a cosine from peak/start_factor up to peak over the share `warmup` of the steps, and
    down to peak/start_factor/final_factor. cosine: from peak down to zero.

    >>> [round(learning_rate(s, 101, 1.0), 3) for s in (0, 29, 100)]
    [0.04, 1.0, 0.0]
    """
    last = max(steps - 1, 1)
    if kind == "constant":
        return peak
    if kind == "cosine":
        return _cosine(peak, 0.0, step / last)
    turn = max(warmup * steps - 1, 0.0)
    start = peak / start_factor
    if step <= turn and turn > 0:
        return _cosine(start, peak, step / turn)
    return _cosine(peak, start / final_factor, (step - turn) / max(last - turn, 1e-9))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0)))
