"""What to run, in which order: every training once, the best value for its time first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ono.errors import InputError
from ono.experiments.budgets import Budget
from ono.experiments.costs import minutes, value
from ono.experiments.datasets import place_of
from ono.experiments.grid import Cell, Experiment, Job
from ono.experiments.identity import identity
from ono.experiments.ledger import Line
from ono.train.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Work:
    """Jobs with the same result: one recipe on the same data, wanted by several experiments."""

    jobs: tuple[Job, ...]

    @property
    def job(self) -> Job:
        """The one that is run for all."""
        return self.jobs[0]


def works_of(
    experiments: Sequence[Experiment],
    budget: Budget,
    *,
    seeds: int = 1,
    shard: tuple[int, int] = (1, 1),
    only: str | None = None,
) -> list[Work]:
    """Return the works of a shard, all with the first seed, then all with the second.

    `only` is a pattern such as "elasticity/*" for the names of cells, or several with commas.
    """
    wanted = ["*"] if only is None else [pattern.strip() for pattern in only.split(",")]
    cells = [(experiment.name, cell) for experiment in experiments for cell in experiment.cells]
    for pattern in wanted:
        if not any(fnmatchcase(str(cell), pattern) for _, cell in cells):
            names = ", ".join(experiment.name for experiment in experiments)
            raise InputError(
                f"no cell of {names} is called like {pattern!r}; --dry-run without --only names "
                "them all"
            )
    chosen = [
        (name, cell, _decisive(cell, budget))
        for name, cell in cells
        if any(fnmatchcase(str(cell), pattern) for pattern in wanted)
    ]
    groups: dict[Any, list[Job]] = {}
    for seed in range(seeds):
        for name, cell, decisive in chosen:
            groups.setdefault((seed, decisive), []).append(Job(name, cell, seed))
    index, count = shard
    return [Work(tuple(jobs)) for jobs in groups.values()][index - 1 :: count]


def _decisive(cell: Cell, budget: Budget) -> Any:
    """Return what two cells have in common if one result serves both."""
    if cell.kind == "eigenfunctions":
        return cell
    recipe = Recipe.load(cell.recipe, budget.changes(cell))
    alike = cell.kind, cell.resolutions, cell.pictured
    return identity(recipe), place_of(cell, budget, Path()), *alike


def in_order(
    works: Iterable[Work],
    experiments: Sequence[Experiment],
    budget: Budget,
    lines: Iterable[Line] = (),
) -> list[Work]:
    """Sort works by value for the time they still need, each seed after the one before.

    Measurements of speed come first: they need the device for themselves, and little of it. What
    failed the last time comes last.
    """
    known, lines = {one.name: one for one in experiments}, list(lines)

    last = {(line.recipe, line.changes, line.budget, line.seed): line.status for line in lines}

    def rank(work: Work) -> tuple[bool, int, bool, float]:
        cell, seed = work.job.cell, work.job.seed
        failed = last.get((cell.recipe, cell.changes, budget.name, seed)) == "failed"
        for_time = worth(work, known) / max(time_left(work, budget, lines), 1e-3)
        return failed, seed, cell.kind != "speed", -for_time

    return sorted(works, key=rank)


def worth(work: Work, experiments: Mapping[str, Experiment]) -> float:
    """Return the value of a work for all who want it."""
    return sum(value(experiments[job.experiment], job.cell) for job in work.jobs)


def time_left(work: Work, budget: Budget, lines: Iterable[Line]) -> float:
    """Return the minutes a work still needs; what was stopped late needs few."""
    lines, job = list(lines), work.job
    begun = [
        line.epochs
        for line in lines
        if (line.recipe, line.changes, line.budget)
        == (job.cell.recipe, job.cell.changes, budget.name)
        and (line.seed, line.status) == (job.seed, "stopped")
    ]
    share = 1 - min(max(begun, default=0) / budget.epochs, 1.0)
    return share * minutes(job.cell, budget, lines)[0]
