"""Where a run is, what it tells its listeners, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["start", "step", "epoch", "checkpoint", "signal", "warning", "end"]


@dataclass(slots=True)
class State:
    """Where a run is. Everything here is saved; `position` counts batches within the epoch."""

    step: int = 0
    epoch: int = 0
    position: int = 0
    best: float = math.inf
    best_epoch: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """What listeners hear: progress bars, loggers, plots."""

    kind: Kind
    state: State
    steps: int
    epochs: int
    details: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended: the errors of its best checkpoint, and what they cost."""

    validation: float
    test: float
    epoch: int
    seconds: float
    path: Path
