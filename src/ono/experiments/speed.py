"""How long a training step takes, how much memory, and how that compares.

Times are of whole steps: gather, forward, loss, backward, clipping and optimiser, on data with the
shapes of a benchmark. A step is compared with its roofline on the same device, and with a step of
the published form of ONO as Python runs it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ono.data.batches import load
from ono.data.store import Dataset
from ono.device import choose_device, matmul_precision, own_products
from ono.errors import DataError
from ono.experiments.roofline import Peaks, Work, measure_peaks, step_work
from ono.models.ono_config import ONOConfig
from ono.train.execution import Captured, Epoch, OneByOne, execution
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
    kernels: str
    precision: str
    milliseconds: float
    first_seconds: float
    peak_bytes: int | None

    @property
    def samples_per_second(self) -> float:
        """How many samples are trained on in a second."""
        return 1000 * self.batch / self.milliseconds


@dataclass(frozen=True, slots=True)
class Comparison:
    """A step beside the least time it could take, and beside the published form if measured."""

    speed: Speed
    work: Work
    peaks: Peaks
    paper: Speed | None = None
    changes: tuple[str, ...] = ()

    @property
    def floor_milliseconds(self) -> float:
        """The least time for a step."""
        return self.peaks.milliseconds(self.work)

    @property
    def share(self) -> float:
        """The least time over the time taken."""
        return self.floor_milliseconds / self.speed.milliseconds

    @property
    def speedup(self) -> float | None:
        """How many steps are taken in the time of one of the published form."""
        if self.paper is None:
            return None
        return self.paper.milliseconds / self.speed.milliseconds

    def line(self) -> dict[str, Any]:
        """Return everything as one flat record."""
        paper = self.paper
        return {
            **asdict(self.speed),
            "set": list(self.changes),
            "samples_per_second": self.speed.samples_per_second,
            "flops": self.work.flops,
            "bytes": self.work.bytes,
            "peak_flops": self.peaks.flops,
            "peak_bandwidth": self.peaks.bandwidth,
            "floor_milliseconds": self.floor_milliseconds,
            "share_of_floor": self.share,
            "paper_milliseconds": None if paper is None else paper.milliseconds,
            "paper_peak_bytes": None if paper is None else paper.peak_bytes,
            "speedup": self.speedup,
        }


def step_speed(
    source: str,
    data: Path,
    overrides: Sequence[str] = (),
    *,
    device: str = "auto",
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Speed:
    """Measure the steps of a recipe on a dataset: the median of several rounds.

    With one thread on a busy CPU, `time.process_time` is the clock that others do not disturb.
    """
    return _measure(recipe_on(source, data, overrides), device, seconds, clock)


def paper_speed(
    source: str,
    data: Path,
    overrides: Sequence[str] = (),
    *,
    device: str = "auto",
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
    published: bool = True,
) -> Speed | None:
    """Measure the steps of a recipe with the published form of its operator, if it is an ONO.

    Its products are those of torch by itself, as the `published` code has them, or ours.
    """
    recipe = paper_form(recipe_on(source, data, overrides))
    products = own_products() if published else None
    return None if recipe is None else _measure(recipe, device, seconds, clock, products)


def compare(
    source: str,
    data: Path,
    overrides: Sequence[str] = (),
    *,
    paper: Speed | None = None,
    device: str = "auto",
    seconds: float = 2.0,
) -> Comparison:
    """Measure the steps of a recipe and what the device could do."""
    recipe = recipe_on(source, data, overrides)
    speed = _measure(recipe, device, seconds, time.perf_counter)
    work = step_work(recipe, cut(Dataset.open(data), recipe).train)
    peaks = measure_peaks(choose_device(device), recipe.train.precision)
    return Comparison(speed, work, peaks, paper, tuple(overrides))


def recipe_on(source: str, data: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe for all training samples of a dataset, which the device is to hold."""
    return Recipe.load(
        source, [f"data.path={data}", "data.train=null", "data.memory=resident", *overrides]
    )


def paper_form(recipe: Recipe) -> Recipe | None:
    """Return a recipe with the preset `paper` of ONO at the same size, eager, in float32.

    Width, layers, heads, eigenfunctions and everything about data and loss stay as they are, but
    no points are thinned. The published code has one set of eigenfunctions, so `eigen.heads` is 1.
    Other models have no such form.
    """
    config = recipe.model.config
    if not isinstance(config, ONOConfig):
        return None
    content = recipe.resolved()
    content["model"] = {
        "name": "ono",
        "preset": "paper",
        "width": config.width,
        "layers": config.layers,
        "ffn_ratio": config.ffn_ratio,
        "lower": {"heads": config.lower.heads},
        "eigen": {"functions": config.eigen.functions},
    }
    content["data"]["thin"] = None
    content["train"] |= {
        "precision": "fp32",
        "execution": "eager",
        "kernels": "plain",
        "compile": False,
        "recompute": False,
        "micro_batch": None,
    }
    return Recipe.from_mapping(content)


def runner_of(recipe: Recipe, where: torch.device) -> tuple[OneByOne | Captured, Epoch]:
    """Return what takes the steps of a recipe, and an epoch of whole batches."""
    view = cut(Dataset.open(recipe.data.path), recipe).train
    step = Step(new_operator(recipe, view).to(where), recipe)
    epoch = Epoch.of(recipe, 0, len(view), view.free_times)
    batch = recipe.train.batch
    whole = len(view) // batch * batch
    if not whole:
        raise DataError(
            f"{recipe.data.path} has {len(view)} training samples, which make no batch of {batch}; "
            "take more samples or a smaller train.batch"
        )
    epoch = Epoch(epoch.order[:whole], epoch.rates[: whole // batch], epoch.times)
    return execution(recipe, step, load(view, where, "resident")), epoch


def _measure(
    recipe: Recipe,
    device: str,
    seconds: float,
    clock: Callable[[], float],
    products: AbstractContextManager[None] | None = None,
) -> Speed:
    where = torch.device(choose_device(device))
    products = products or matmul_precision(recipe.train.precision, where)
    before = _forget_memory(where)
    runner, epoch = runner_of(recipe, where)

    def round_of_steps() -> float:
        began = clock()
        for _ in runner.run(epoch):
            pass
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        return clock() - began

    with products:
        first = round_of_steps()
        rounds: list[float] = []
        spent = 0.0
        # Three rounds are wanted, but not for minutes.
        while spent < seconds or (len(rounds) < 3 and spent < 10 * seconds):
            rounds.append(round_of_steps())
            spent += rounds[-1]
    return Speed(
        recipe.name,
        sum(p.numel() for p in runner.step.operator.parameters()),
        recipe.train.batch,
        runner.form,
        "fused" if runner.step.fused else "plain",
        recipe.train.precision,
        1000 * float(np.median(rounds)) / len(epoch.rates),
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
