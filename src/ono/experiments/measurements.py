"""Measure several recipes one after the other; what one refuses does not stop the others."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ono.errors import OnoError
from ono.experiments.inference import Inference, call_speed, untrained
from ono.experiments.speed import Comparison, compare, paper_speed
from ono.experiments.stand_in import stand_in


@dataclass(frozen=True, slots=True)
class Refused:
    """What was not measured, and why."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def measure_steps(
    recipes: Sequence[str],
    changes: Sequence[str],
    forms: Sequence[str],
    *,
    baseline: bool,
    samples: int,
    seconds: float,
    device: str,
) -> Iterator[Comparison | Refused]:
    """Yield the speed of training steps of each recipe in each form of execution."""
    with tempfile.TemporaryDirectory() as folder:
        for recipe in recipes:
            size = "quick" if "-quick" in recipe else "full"
            data = _data(Path(folder), recipe, size, samples)
            paper = None
            for form in forms:
                chosen = [*changes, f"train.execution={form}"]
                try:
                    if baseline and paper is None:
                        paper = paper_speed(recipe, data, chosen, device=device, seconds=seconds)
                    yield compare(recipe, data, chosen, paper=paper, device=device, seconds=seconds)
                except OnoError as error:
                    yield Refused(recipe, str(error))


def measure_calls(
    recipes: Sequence[str],
    changes: Sequence[str],
    calls: Sequence[tuple[int, int]],
    *,
    chunk: int | None,
    recorded: bool,
    seconds: float,
    device: str,
) -> Iterator[Inference | Refused]:
    """Yield the speed of each recipe's `calls`: so many samples of so many points."""
    with tempfile.TemporaryDirectory() as folder:
        for recipe in recipes:
            data = _data(Path(folder), recipe, "full", samples=8)
            name, operator = untrained(recipe, data, changes, device=device)
            for batch, points in calls:
                try:
                    yield call_speed(
                        name,
                        operator,
                        points,
                        batch=batch,
                        chunk=chunk,
                        seconds=seconds,
                        recorded=recorded,
                    )
                except OnoError as error:
                    yield Refused(f"{recipe}, {points} points", str(error))


def _data(folder: Path, recipe: str, size: str, samples: int) -> Path:
    """Return random data with the shapes of a recipe's benchmark, made when first asked for."""
    name = recipe.partition("/")[0]
    path = folder / f"{name}-{size}"
    if not path.exists():
        stand_in(name, path, samples=samples, size=size)
    return path
