"""What a job is under given settings: its recipe, what makes it the same as another, its line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ono.data.store import Dataset
from ono.device import choose_device, describe_device
from ono.experiments.budgets import Budget
from ono.experiments.datasets import place_of, source_of
from ono.experiments.grid import Job
from ono.experiments.identity import data_identity, digest, identity
from ono.experiments.ledger import Line
from ono.train.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how cells are run; `deadline` is a time of day in seconds.

    Without `pictures` none are kept.
    """

    budget: Budget
    data: Path
    runs: Path
    device: str = "auto"
    deadline: float | None = None
    pictures: Path | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended; `signal_number` if a signal, not the time limit, stopped it."""

    job: Job
    line: Line
    signal_number: int | None = None

    def shared_by(self, cells: int) -> Ended:
        """Say how many cells were under way at once."""
        return replace(self, line=self.line.model_copy(update={"shared": cells}))


def recipe_of(job: Job, settings: Settings) -> Recipe:
    """Return the recipe of a job under its budget."""
    place = place_of(job.cell, settings.budget, settings.data)
    fixed = [f"data.path={place}", f"seed={job.seed}", f"train.device={settings.device}"]
    return Recipe.load(job.cell.recipe, [*settings.budget.changes(job.cell), *fixed])


def identity_of(job: Job, settings: Settings) -> str:
    """Return what makes the recipe of a job the same as another, whatever its data and seed."""
    if job.cell.kind == "eigenfunctions":
        return digest({"case": job.cell.recipe, "steps": settings.budget.steps})
    timed_on = device_named(settings.device) if job.cell.kind == "speed" else None
    return identity(recipe_of(job, settings), timed_on=timed_on)


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
        return Line(**known, recipe_sha256=identity_of(job, settings), data="none")
    data = Dataset.open(place_of(cell, budget, settings.data))
    return Line(
        **known,
        recipe_sha256=identity_of(job, settings),
        data_id=data_identity(data),
        data_sha256=data.sha256,
        data=source_of(cell, data.info),
        data_name=data.path.name,
    )


def device_named(name: str) -> str:
    """Describe the device that a name stands for here."""
    return describe_device(choose_device(name))
