"""What decided the numbers of a table: budget, data, seeds, devices, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ono.experiments.budgets import BUDGETS
from ono.experiments.grid import Cell, Table
from ono.experiments.identity import cell_identity
from ono.experiments.ledger import Line, Source
from ono.experiments.published import PUBLISHED

Unfinished = Mapping[tuple[str, tuple[str, ...], int], Line]
"""The newest lines of recipes with changes and seeds that have no result."""
_LONGEST = 120

SOURCES: dict[Source, str] = {
    "made": "made here from physics; the paper used the published files, so compare within ours",
    "published": "the published files",
    "imported": "imported by the user",
    "stand-in": "random numbers with the shapes of the benchmarks",
    "none": "drawn while training",
}


def unfinished_cells(lines: list[Line], whole: list[Line]) -> Unfinished:
    """Return the newest line of every cell and seed that was begun and has no result."""
    done = {(line.recipe, line.changes, line.seed) for line in whole}
    last = {(line.recipe, line.changes, line.seed): line for line in lines}
    return {
        key: line for key, line in last.items() if key not in done and line.status != "complete"
    }


def state_of(cells: Sequence[Cell], unfinished: Unfinished) -> str:
    """Say how far cells without a result are, or nothing if none was begun."""
    wanted = {(cell.recipe, cell.changes) for cell in cells}
    for (recipe, changes, _), line in unfinished.items():
        if (recipe, changes) in wanted:
            return "failed" if line.status == "failed" else f"at epoch {line.epochs}"
    return ""


def failed_seeds(cell: Cell, unfinished: Unfinished) -> int:
    """Return with how many seeds a cell has failed."""
    own = [line for key, line in unfinished.items() if key[:2] == (cell.recipe, cell.changes)]
    return sum(line.status == "failed" for line in own)


def facts_of(
    experiment: str, table: Table, lines: list[Line], unfinished: Unfinished
) -> list[tuple[str, str]]:
    """Return names and values, in the order they are told."""
    source = lines[0].data
    seeds = sorted({line.seed for line in lines})
    several = "; ± is the standard deviation over them, no ± is one seed" if len(seeds) > 1 else ""
    cells = {(c.recipe, c.changes) for place in table.places.values() for c in place.cells}
    done = {(line.recipe, line.changes) for line in lines}
    begun = {key[:2]: line.status for key, line in unfinished.items() if key[:2] not in done}
    states = Counter[str](begun.values())
    states["complete"] = len(done)
    failed = [line for line in unfinished.values() if line.status == "failed"]
    in_parts = [line for line in lines if line.micro_batch is not None]
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
        *(("older recipe", name) for name in _outdated(table, lines)),
        *(("in parts", f"{_named(line)}: {line.micro_batch} samples") for line in in_parts),
        *(("failed", f"{_named(line)}: {_short(line.reason)}") for line in failed),
    ]


def _outdated(table: Table, lines: list[Line]) -> list[str]:
    """Return the names of cells whose numbers are of a recipe that is no longer the same."""
    trained = [c for place in table.places.values() for c in place.cells if c.kind == "train"]
    known = {(cell.recipe, cell.changes): cell for cell in trained}
    return [
        _named(line)
        for line in lines
        if (cell := known.get((line.recipe, line.changes))) is not None
        and line.budget in BUDGETS
        and line.recipe_sha256 != cell_identity(cell, BUDGETS[line.budget])
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
    seed = f", seed {line.seed}" if line.seed else ""
    return " ".join((line.recipe, *line.changes)) + seed


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else reason[: _LONGEST - 1] + "…"


def counted(states: Mapping[str, int]) -> str:
    """Say how many cells are in which state.

    >>> counted({"complete": 3, "failed": 1})
    '1 failed, 3 complete'
    """
    names = ("stopped", "failed", "complete")
    return ", ".join(f"{states[name]} {name}" for name in names if states.get(name))
