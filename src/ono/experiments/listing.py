"""What there is to run, in the order it would be run, and how far the ledger is with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ono.experiments.budgets import Budget
from ono.experiments.costs import minutes
from ono.experiments.grid import Experiment, Job
from ono.experiments.identity import cell_identity
from ono.experiments.ledger import Line
from ono.experiments.plan import Work, in_order, time_left, works_of


@dataclass(frozen=True, slots=True)
class Listed:
    """A work: its state in the ledger, and the minutes it needs or took."""

    work: Work
    state: str
    minutes: float
    measured: bool


def listing(
    experiments: Sequence[Experiment],
    budget: Budget,
    lines: Sequence[Line],
    *,
    seeds: int = 1,
    shard: tuple[int, int] = (1, 1),
    only: str | None = None,
) -> list[Listed]:
    """Return every work of a call. Data is not looked at: a line on any data counts."""
    works = works_of(experiments, budget, seeds=seeds, shard=shard, only=only)
    listed = []
    for work in in_order(works, experiments, budget, lines):
        state = _state(work, budget, lines)
        needed, measured = minutes(work.job.cell, budget, lines)
        if state != "complete":
            needed = time_left(work, budget, lines)
        listed.append(Listed(work, state, needed, measured))
    return listed


def _state(work: Work, budget: Budget, lines: Sequence[Line]) -> str:
    own = [line for job in work.jobs for line in lines if _is_about(line, job, budget)]
    if any(line.status == "complete" for line in own):
        return "complete"
    if not own:
        return "-"
    last = own[-1]
    return f"at {last.epochs}/{budget.epochs}" if last.status == "stopped" else last.status


def _is_about(line: Line, job: Job, budget: Budget) -> bool:
    about = (line.recipe, line.changes, line.seed, line.budget)
    if about != (job.cell.recipe, job.cell.changes, job.seed, budget.name):
        return False
    if job.cell.kind != "train":  # a training of the same recipe is something else
        return line.experiment == job.experiment
    return line.recipe_sha256 in ("", cell_identity(job.cell, budget))
