"""What decided the numbers of a table: budget, data, seeds, devices, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ono.experiments.budgets import BUDGETS
from ono.experiments.grid import Table
from ono.experiments.ledger import Line, Source
from ono.experiments.published import PUBLISHED

Unfinished = Mapping[tuple[str, tuple[str, ...]], Line]
_LONGEST = 120

SOURCES: dict[Source, str] = {
    "made": "made here from physics; the paper used the published files, so compare within ours",
    "published": "the published files",
    "imported": "imported by the user",
    "stand-in": "random numbers with the shapes of the benchmarks",
    "none": "drawn while training",
}


def unfinished_cells(lines: list[Line], whole: list[Line]) -> Unfinished:
    """Return the newest line of every cell that was begun and has no result."""
    done = {(line.recipe, line.changes) for line in whole}
    last = {(line.recipe, line.changes): line for line in lines}
    return {
        cell: line for cell, line in last.items() if cell not in done and line.status != "complete"
    }


def state_of(line: Line) -> str:
    """Say how far a cell without a result is."""
    return "failed" if line.status == "failed" else f"at epoch {line.epochs}"


def facts_of(
    experiment: str, table: Table, lines: list[Line], unfinished: Unfinished
) -> list[tuple[str, str]]:
    """Return names and values, in the order they are told."""
    source = lines[0].data
    seeds = sorted({line.seed for line in lines})
    several = "; ± is the standard deviation over them, no ± is one seed" if len(seeds) > 1 else ""
    cells = {(c.recipe, c.changes) for place in table.places.values() for c in place.cells}
    done = {(line.recipe, line.changes) for line in lines}
    states = Counter[str](line.status for line in unfinished.values())
    states["complete"] = len(done)
    failed = [line for line in unfinished.values() if line.status == "failed"]
    commits = sorted({line.commit or "not known" for line in lines})
    known = PUBLISHED.get(table.name)
    return [
        ("budget", _budget(lines[0].budget, source)),
        ("data", SOURCES[source]),
        ("cells", f"{counted(states)} of {len(cells)}"),
        ("seeds", f"{', '.join(map(str, seeds))}{several}"),
        ("device", ", ".join(sorted({line.device for line in lines}))),
        ("commit", ", ".join(commits)),
        ("paper", "prints no numbers" if known is None else known.origin),
        ("run by", _command(experiment, lines)),
        *(("failed", f"{_named(line)}: {_short(line.reason)}") for line in failed),
    ]


def _command(experiment: str, lines: list[Line]) -> str:
    seeds = max(line.seed for line in lines) + 1
    several = f" --seeds {seeds}" if seeds > 1 else ""
    return f"ono reproduce {experiment} --budget {lines[0].budget}{several}"


def _budget(name: str, source: Source) -> str:
    if name not in BUDGETS:
        return name
    budget = BUDGETS[name]
    if source == "none":
        return f"{name}, {budget.steps} steps"
    timed = source == "stand-in" and not budget.is_smoke
    return f"{name}, steps timed for {budget.seconds:g} s" if timed else f"{name}, {budget.note}"


def _named(line: Line) -> str:
    return " ".join((line.recipe, *line.changes))


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else reason[: _LONGEST - 1] + "…"


def counted(states: Mapping[str, int]) -> str:
    """Say how many cells are in which state.

    >>> counted({"complete": 3, "failed": 1})
    '1 failed, 3 complete'
    """
    names = ("stopped", "failed", "complete")
    return ", ".join(f"{states[name]} {name}" for name in names if states.get(name))
