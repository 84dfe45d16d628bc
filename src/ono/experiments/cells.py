"""Run one cell: train it, measure its speed, or recover eigenfunctions; return its line.

A training that was stopped goes on in its own directory, named by what decides it, so that
experiments with a cell in common train it once.
"""

from __future__ import annotations

import gc
import math
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ono.data.benchmarks import benchmark
from ono.data.task import resolutions
from ono.device import choose_device
from ono.errors import CheckpointError, DataError, Interrupted, OnoError, RunInUse
from ono.experiments import eigenfunctions
from ono.experiments.datasets import place_of
from ono.experiments.grid import Job
from ono.experiments.jobs import Ended, Settings, device_named, open_line, recipe_of
from ono.experiments.ledger import Line
from ono.experiments.pictures import median_row, picture_file, picture_of
from ono.experiments.speed import step_speed
from ono.train import checkpoint as checkpoints
from ono.train.evaluations import Evaluator
from ono.train.loop import fit, resume
from ono.train.run import RECIPE, Run, commit
from ono.train.state import Event, Listener


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


def run_job(job: Job, settings: Settings, listeners: Sequence[Listener] = ()) -> Ended:
    """Run a job, or what is left of it. Whatever goes wrong becomes a failed line."""
    line, limit = open_line(job, settings), _TimeLimit(settings.deadline)
    where = choose_device(settings.device)
    if where != "cpu":  # what an earlier job left must not count as this one's
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(where)
    known: dict[str, Any] = {"commit": commit(), "device": device_named(settings.device)}
    found, stopped_by = dict(known), None
    try:
        if job.cell.kind == "train":
            found |= _train(job, settings, line, [*listeners, limit])
        elif job.cell.kind == "speed":
            found |= _measure(job, settings)
        else:
            found |= _recover(job, settings, line)
        _refuse_non_finite(found)
        found["status"] = "complete"
    except Interrupted as error:
        path = _run_path(job, settings, line)
        checkpoints.purge(path / "checkpoints", keep=1)  # all that going on needs, to carry less
        found |= {"run": str(path), "epochs": _epochs_done(path)}
        if not limit.passed:
            stopped_by = error.signal_number
    except KeyboardInterrupt:  # of what is no training nothing is kept
        found, stopped_by = known | {"epochs": 0}, signal.SIGINT
    except RunInUse:
        raise
    except Exception as error:  # one cell must not take the others with it
        found = known | {"status": "failed", "reason": explain(error)}
    found["time"] = time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime())
    return Ended(job, line.model_copy(update=found), stopped_by)


def _refuse_non_finite(found: dict[str, Any]) -> None:
    """Raise unless every number is one: what is no number is no result."""
    times = {f"time {number}": value for number, value in enumerate(found.get("by_time", ()), 1)}
    numbers = found["values"] | found.get("by_channel", {}) | times
    bad = [name for name, value in numbers.items() if not math.isfinite(value)]
    if bad:
        raise DataError(f"the result is not finite: {', '.join(bad)}")


def explain(error: Exception) -> str:
    """Say what went wrong; of an error that should not happen, also where."""
    if isinstance(error, OnoError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    told = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {told} ({Path(last.filename).name}, line {last.lineno})"


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
    if recipe.rollout is not None and recipe.rollout.train_steps is not None:
        values |= {"seen": result["test_seen"], "unseen": result["test_unseen"]}
    if job.cell.resolutions or job.cell.pictured:
        values |= _look_closer(job, settings, line, path, result)
    checkpoints.purge(path / "checkpoints", keep=1)
    return {
        "values": values,
        "by_channel": result["test_by_channel"],
        "by_time": tuple(result["test_by_time"] or ()),
        "epochs": recipe.train.epochs,
        "run": str(path),
        "micro_batch": result.get("micro_batch"),
        **{
            name: result[name]
            for name in ("parameters", "commit", "device", "seconds", "peak_memory_bytes")
        },
    }


def _look_closer(
    job: Job, settings: Settings, line: Line, path: Path, result: dict[str, Any]
) -> dict[str, float]:
    """Return the errors at the other resolutions that the data contains; keep a picture."""
    evaluator, recipe = Evaluator(path, device=settings.device), recipe_of(job, settings)
    known = resolutions(evaluator.view.dataset)
    finer = [nodes for nodes in job.cell.resolutions if nodes in known]
    values = {str(nodes): evaluator.on_grid(nodes).mean for nodes in finer}
    if settings.pictures is not None and job.cell.pictured and job.seed == 0:
        row = median_row({int(row): error for row, error in result["test_errors"].items()})
        picture = picture_of(recipe, evaluator.operator, evaluator.view, row, finer)
        picture.save(picture_file(settings.pictures, line))
    return values


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


def _recover(job: Job, settings: Settings, line: Line) -> dict[str, Any]:
    began = time.monotonic()
    case = job.cell.recipe.partition("/")[2]
    found = eigenfunctions.recover(case, steps=settings.budget.steps, seed=job.seed)
    if settings.pictures is not None and job.seed == 0:
        found.save(picture_file(settings.pictures, line))
    return {
        "values": {
            "span": found.span,
            "functions": found.functions,
            "eigenvalues": found.eigenvalues,
        },
        "device": device_named("cpu"),
        "seconds": time.monotonic() - began,
    }


def _run_path(job: Job, settings: Settings, line: Line) -> Path:
    recipe = recipe_of(job, settings)
    name = job.cell.recipe.replace("/", "-")
    return settings.runs / f"{name}-{job.seed}-{recipe.sha256[:8]}-{line.data_sha256[:8]}"


def _epochs_done(path: Path) -> int:
    """Return how many whole epochs the newest checkpoint has: what going on need not repeat."""
    try:
        newest, _ = checkpoints.latest(path / "checkpoints")
    except CheckpointError:
        return 0
    return int(checkpoints.read_state(newest)["epoch"])
