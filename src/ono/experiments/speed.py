"""How long a training step takes, and how much memory.

Times are of whole steps: gather, forward, loss, backward, clipping and optimiser, on data with the
shapes of a benchmark.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ono.data.batches import load
from ono.data.store import Dataset
from ono.device import choose_device
from ono.train.execution import Epoch, execution
from ono.train.prepare import cut, new_operator
from ono.train.recipe import Recipe
from ono.train.step import Step


@dataclass(frozen=True, slots=True)
class Speed:
    """What a step costs. `first` includes loading libraries, compiling and recording."""

    recipe: str
    parameters: int
    batch: int
    form: str
    milliseconds: float
    first_seconds: float
    peak_bytes: int | None

    @property
    def samples_per_second(self) -> float:
        """How many samples are trained on in a second."""
        return 1000 * self.batch / self.milliseconds


def step_speed(
    source: str,
    data: Path,
    overrides: Sequence[str] = (),
    *,
    device: str = "auto",
    seconds: float = 2.0,
) -> Speed:
    """Measure the steps of a recipe on a dataset: the median of several rounds."""
    where = torch.device(choose_device(device))
    recipe = Recipe.load(
        source, [f"data.path={data}", "data.train=null", "data.memory=resident", *overrides]
    )
    view = cut(Dataset.open(data), recipe).train
    before = _forget_memory(where)
    operator = new_operator(recipe, view).to(where)
    step, train, batch = Step(operator, recipe), load(view, where, "resident"), recipe.train.batch
    runner = execution(recipe, step, train)
    times = len(view.times) if view.times is not None and view.window is None else None
    epoch = Epoch.of(recipe, 0, len(view), times)
    whole = len(view) // batch * batch
    epoch = Epoch(epoch.order[:whole], epoch.rates[: whole // batch], epoch.times)

    def round_of_steps() -> float:
        began = time.perf_counter()
        for _ in runner.run(epoch):
            pass
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        return time.perf_counter() - began

    first = round_of_steps()
    rounds: list[float] = []
    spent = 0.0
    while spent < seconds or len(rounds) < 3:
        rounds.append(round_of_steps())
        spent += rounds[-1]
    return Speed(
        recipe.name,
        sum(p.numel() for p in operator.parameters()),
        batch,
        runner.form,
        1000 * float(np.median(rounds)) / (whole // batch),
        first,
        torch.cuda.max_memory_allocated(where) - before if where.type == "cuda" else None,
    )


def _forget_memory(where: torch.device) -> int:
    """Free what earlier measurements left and return the bytes that stay."""
    if where.type != "cuda":
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(where)
    return torch.cuda.memory_allocated(where)
