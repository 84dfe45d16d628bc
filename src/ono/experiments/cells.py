"""Run one cell: train it, measure its speed, or recover eigenfunctions; return its line.

A training that was stopped goes on in its own directory, named by what decides it, so that
experiments with a cell in common train it once.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ono.data.benchmarks import benchmark
from ono.data.store import Dataset
from ono.data.task import resolutions
from ono.device import choose_device, describe_device
from ono.errors import Interrupted, OnoError, RunInUse
from ono.experiments import eigenfunctions
from ono.experiments.budgets import Budget
from ono.experiments.datasets import place_of, source_of
from ono.experiments.grid import Job
from ono.experiments.ledger import Line, digest, identity
from ono.experiments.speed import step_speed
from ono.train.evaluations import Evaluator
from ono.train.loop import fit, resume
from ono.train.recipe import Recipe
from ono.train.run import RECIPE, Run, commit, read_metrics
from ono.train.state import Event, Listener

FUNCTIONS_FILE = "eigenfunctions.npz"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how cells are run; `deadline` is a time of day in seconds."""

    budget: Budget
    data: Path
    runs: Path
    device: str = "auto"
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended; `signal_number` if a signal, not the time limit, stopped it."""

    job: Job
    line: Line
    signal_number: int | None = None


class _TimeLimit:
    """Ask the loop to stop, as a signal would, once the time has come."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline, self.passed = deadline, False

    def __call__(self, event: Event) -> None:
        if self.deadline is None or self.passed or event.kind != "step":
            return
        in_main = threading.current_thread() is threading.main_thread()  # signals reach no other
        if in_main and time.time() > self.deadline:
            self.passed = True
            signal.raise_signal(signal.SIGTERM)


def recipe_of(job: Job, settings: Settings) -> Recipe:
    """Return the recipe of a job under its budget."""
    place = place_of(job.cell, settings.budget, settings.data)
    fixed = [f"data.path={place}", f"seed={job.seed}", f"train.device={settings.device}"]
    return Recipe.load(job.cell.recipe, [*settings.budget.changes(job.cell), *fixed])


def open_line(job: Job, settings: Settings) -> Line:
    """Return the line of a job whose data is there, before anything is known of its result."""
    cell, budget = job.cell, settings.budget
    known: dict[str, Any] = {
        "experiment": job.experiment,
        "recipe": cell.recipe,
        "changes": cell.changes,
        "seed": job.seed,
        "budget": budget.name,
        "status": "stopped",
    }
    if cell.kind == "eigenfunctions":
        shown = {"case": cell.recipe, "steps": budget.steps}
        return Line(**known, recipe_sha256=digest(shown), data_sha256="", data="none")
    data = Dataset.open(place_of(cell, budget, settings.data))
    return Line(
        **known,
        recipe_sha256=identity(recipe_of(job, settings)),
        data_sha256=data.sha256,
        data=source_of(cell, data.info),
        data_name=data.path.name,
    )


def run_job(job: Job, settings: Settings, listeners: Sequence[Listener] = ()) -> Ended:
    """Run a job, or what is left of it. What an operator refuses becomes a failed line."""
    line, limit = open_line(job, settings), _TimeLimit(settings.deadline)
    if torch.cuda.is_initialized():  # what an earlier job left must not count as this one's
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    found: dict[str, Any] = {"commit": commit(), "device": _device(settings.device)}
    stopped_by = None
    try:
        if job.cell.kind == "train":
            found |= _train(job, settings, line, [*listeners, limit])
        elif job.cell.kind == "speed":
            found |= _measure(job, settings)
        else:
            found |= _recover(job, settings)
        found["status"] = "complete"
    except Interrupted as error:
        path = _run_path(job, settings, line)
        found |= {"run": str(path), "epochs": _epochs_done(path)}
        if not limit.passed:
            stopped_by = error.signal_number
    except RunInUse:
        raise
    except (OnoError, torch.OutOfMemoryError) as error:
        found |= {"status": "failed", "reason": str(error)}
    found["time"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return Ended(job, line.model_copy(update=found), stopped_by)


def _train(job: Job, settings: Settings, line: Line, listeners: list[Listener]) -> dict[str, Any]:
    path, recipe = _run_path(job, settings, line), recipe_of(job, settings)
    run = Run(path)
    if run.result() is None:
        if (path / RECIPE).exists():
            resume(path, listeners)
        else:
            fit(recipe, path, listeners)
    result = run.result()
    assert result is not None
    values = {"test": result["test"], "validation": result["validation"]}
    by_time = result["test_by_time"] or []
    if by_time and recipe.rollout is not None and recipe.rollout.train_steps is not None:
        seen = recipe.rollout.train_steps
        values["seen"] = sum(by_time[:seen]) / seen
        values["unseen"] = sum(by_time[seen:]) / len(by_time[seen:])
    values |= _finer(job, settings, path)
    return {
        "values": values,
        "by_channel": result["test_by_channel"],
        "by_time": tuple(by_time),
        "epochs": recipe.train.epochs,
        "run": str(path),
        **{
            name: result[name]
            for name in ("parameters", "commit", "device", "seconds", "peak_memory_bytes")
        },
    }


def _finer(job: Job, settings: Settings, path: Path) -> dict[str, float]:
    """Return the test errors at the other resolutions that the data contains."""
    if not job.cell.resolutions:
        return {}
    data = Dataset.open(place_of(job.cell, settings.budget, settings.data))
    evaluator = Evaluator(path, device=settings.device)
    there = [nodes for nodes in job.cell.resolutions if nodes in resolutions(data)]
    return {str(nodes): evaluator.on_grid(nodes).mean for nodes in there}


def _measure(job: Job, settings: Settings) -> dict[str, Any]:
    began = time.monotonic()
    place = place_of(job.cell, settings.budget, settings.data)
    # All samples of the stand-in data count, however many a budget would train on.
    counts = ("data.train=", "data.validation=", "data.test=")
    changes = [c for c in settings.budget.changes(job.cell) if not c.startswith(counts)]
    speed = step_speed(
        job.cell.recipe,
        place,
        [*changes, f"train.device={settings.device}"],
        device=settings.device,
        seconds=settings.budget.seconds,
    )
    steps = -(-benchmark(job.cell.benchmark).sizes["full"].splits["train"] // speed.batch)
    values = {
        "step": speed.milliseconds / 1000,
        "epoch": steps * speed.milliseconds / 1000,
        "parameters": speed.parameters / 1e6,
    }
    if speed.peak_bytes is not None:
        values["memory"] = speed.peak_bytes / 2**30
    return {
        "values": values,
        "parameters": speed.parameters,
        "peak_memory_bytes": speed.peak_bytes,
        "seconds": time.monotonic() - began,
    }


def _recover(job: Job, settings: Settings) -> dict[str, Any]:
    began = time.monotonic()
    case = job.cell.recipe.partition("/")[2]
    found = eigenfunctions.recover(case, steps=settings.budget.steps, seed=job.seed)
    path = settings.runs / f"eigenfunctions-{case}-{settings.budget.name}-{job.seed}"
    found.save(path / FUNCTIONS_FILE)
    return {
        "values": {
            "span": found.span,
            "functions": found.functions,
            "eigenvalues": found.eigenvalues,
        },
        "device": _device("cpu"),
        "seconds": time.monotonic() - began,
        "run": str(path),
    }


def _run_path(job: Job, settings: Settings, line: Line) -> Path:
    recipe = recipe_of(job, settings)
    name = job.cell.recipe.replace("/", "-")
    return settings.runs / f"{name}-{job.seed}-{recipe.sha256[:8]}-{line.data_sha256[:8]}"


def _epochs_done(path: Path) -> int:
    lines = read_metrics(path)
    return int(lines[-1]["epoch"]) if lines else 0


def _device(name: str) -> str:
    return describe_device(choose_device(name))
