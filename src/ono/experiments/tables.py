"""From the ledger to tables and figures: ours beside the paper's.

Numbers of different budgets, and of made and published data, never stand in one table.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ono.data.info import Array
from ono.experiments.budgets import BUDGETS
from ono.experiments.catalogue import NAMES, experiment
from ono.experiments.grid import Cell, Experiment, Place, Table, Unit
from ono.experiments.ledger import Line, Source, latest
from ono.experiments.published import PUBLISHED, Number

ABSENT = "-"
UNITS: dict[Unit, str] = {
    "error": "",
    "seconds": " s",
    "millions": " M",
    "GiB": " GiB",
    "degrees": "°",
}
SOURCES: dict[Source, str] = {
    "made": "made here from physics; the paper used the published files, so compare within ours",
    "published": "the published files",
    "imported": "imported by the user",
    "stand-in": "random numbers with the shapes of the benchmarks",
    "none": "drawn while training",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a figure: points and, with several seeds, their spread."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float]
    published: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A small picture: a learned function over the true one."""

    title: str
    x: Array
    learned: Array
    true: Array


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table ready to be written: every entry is text, a missing one is "-"."""

    name: str
    title: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    axis: str | None = None
    curves: Sequence[Curve] = ()
    panels: Sequence[Panel] = ()


@dataclass(frozen=True, slots=True)
class _Ours:
    """What we measured for a place: the mean over seeds of each cell."""

    means: list[float]
    spreads: list[float]
    seeds: int

    @property
    def middle(self) -> float:
        return self.means[0]


def sheets(lines: Iterable[Line], names: Sequence[str] = NAMES) -> list[Sheet]:
    """Return every table of the paper, as far as the ledger fills it."""
    held = [line for line in latest(lines).values() if line.status == "complete"]
    made = []
    for name in names:
        chosen = experiment(name)
        own = [line for line in held if line.experiment == name]
        for table in chosen.tables:
            made += _sheets_of(chosen, table, own)
    return made


def _sheets_of(chosen: Experiment, table: Table, lines: list[Line]) -> list[Sheet]:
    cells = {(c.recipe, c.changes) for place in table.places.values() for c in place.cells}
    lines = [line for line in lines if (line.recipe, line.changes) in cells]
    groups = dict.fromkeys((line.budget, line.data) for line in lines)
    if not groups:
        caption = f"Not run yet: `ono reproduce {chosen.name}`. {_origin(table)}"
        return [_sheet(table, [], caption, "")]
    made = []
    for budget, source in groups:
        some = [line for line in lines if (line.budget, line.data) == (budget, source)]
        made.append(_sheet(table, some, _caption(table, some), f"{budget}-{source}"))
    return made


def _sheet(table: Table, lines: list[Line], caption: str, group: str) -> Sheet:
    ours = {key: _measured(place, lines) for key, place in table.places.items()}
    printed = PUBLISHED[table.name].numbers if table.name in PUBLISHED else {}
    rows: list[list[str]] = []
    for row in table.rows:
        keys = [(row, column) for column in table.columns]
        units = {key: table.places[key].unit for key in keys if key in table.places}
        rows.append([row, *(_text(ours.get(key), units.get(key, "error")) for key in keys)])
        if any(key in printed for key in keys):
            shown = [_printed(printed.get(key), units.get(key, "error")) for key in keys]
            rows.append([f"{row}, paper", *shown])
            apart = [_difference(ours.get(key), printed.get(key)) for key in keys]
            if any(unit == "error" for unit in units.values()):
                rows.append([f"{row}, difference", *apart])
    return Sheet(
        f"{table.name}-{group}" if group else table.name,
        table.title,
        caption,
        ("", *table.columns),
        rows,
        table.axis,
        _curves(table, ours, printed) if table.axis else (),
        _panels(lines) if table.name == "eigenfunctions" else (),
    )


def _measured(place: Place, lines: list[Line]) -> _Ours | None:
    """Return the means over seeds of the cells of a place, each from its newest recipe and data."""
    means, spreads, seeds = [], [], []
    for cell in place.cells:
        values = _values(cell, place.value, lines)
        if values:
            means.append(statistics.fmean(values))
            spreads.append(statistics.stdev(values) if len(values) > 1 else 0.0)
            seeds.append(len(values))
    return _Ours(means, spreads, min(seeds)) if means else None


def _values(cell: Cell, value: str, lines: list[Line]) -> list[float]:
    own = [
        line
        for line in lines
        if (line.recipe, line.changes) == (cell.recipe, cell.changes) and value in line.values
    ]
    if not own:
        return []
    newest = max(own, key=lambda line: line.time)
    same = (newest.recipe_sha256, newest.data_sha256)
    return [line.values[value] for line in own if (line.recipe_sha256, line.data_sha256) == same]


def _text(ours: _Ours | None, unit: Unit) -> str:
    if ours is None:
        return ABSENT
    if len(ours.means) > 1:
        return _printed((min(ours.means), max(ours.means)), unit)
    spread = f" ± {number(ours.spreads[0], unit)}" if ours.seeds > 1 else ""
    return f"{number(ours.middle, unit)}{spread}{UNITS[unit]}"


def _printed(value: Number | None, unit: Unit) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, tuple):
        return f"{number(value[0], unit)} to {number(value[1], unit)}{UNITS[unit]}"
    return f"{number(value, unit)}{UNITS[unit]}"


def number(value: float, unit: Unit) -> str:
    """Write a number with as many digits as its unit deserves.

    >>> number(0.01184, "error"), number(3.813, "seconds"), number(0.00034, "error")
    ('0.0118', '3.81', '0.00034')
    """
    if unit == "error":
        return f"{value:.4f}" if value >= 0.001 or value == 0 else f"{value:.2g}"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _difference(ours: _Ours | None, printed: Number | None) -> str:
    if ours is None or printed is None or isinstance(printed, tuple) or len(ours.means) > 1:
        return ABSENT
    return f"{100 * (ours.middle / printed - 1):+.0f} %"


def _caption(table: Table, lines: list[Line]) -> str:
    budget, source = lines[0].budget, lines[0].data
    note = BUDGETS[budget].note if budget in BUDGETS else ""
    seeds = sorted({line.seed for line in lines})
    several = "; ± is the standard deviation over seeds" if len(seeds) > 1 else ""
    devices = ", ".join(sorted({line.device for line in lines}))
    commits = ", ".join(sorted({line.commit or "not known" for line in lines}))
    parts = [
        f"Budget {budget}: {note}.",
        f"Data: {SOURCES[source]}.",
        f"Seeds {', '.join(map(str, seeds))}{several}.",
        f"On {devices}; commit {commits}.",
        table.note,
        _origin(table),
    ]
    return " ".join(part for part in parts if part)


def _origin(table: Table) -> str:
    known = PUBLISHED.get(table.name)
    return "The paper prints no numbers." if known is None else f"The paper: {known.origin}."


def _curves(
    table: Table,
    ours: Mapping[tuple[str, str], _Ours | None],
    printed: Mapping[tuple[str, str], Number],
) -> list[Curve]:
    curves = []
    for row in table.rows:
        found = [(float(c), ours.get((row, c))) for c in table.columns]
        there = [(x, o) for x, o in found if o is not None]
        if there:
            curves.append(
                Curve(
                    row,
                    [x for x, _ in there],
                    [o.middle for _, o in there],
                    [o.spreads[0] for _, o in there],
                )
            )
        paper = [(float(c), printed[row, c]) for c in table.columns if (row, c) in printed]
        points = [(x, y) for x, y in paper if not isinstance(y, tuple)]
        if points:
            xs, ys = [x for x, _ in points], [y for _, y in points]
            curves.append(Curve(row, xs, ys, [0.0] * len(xs), published=True))
    return curves


def _panels(lines: list[Line]) -> list[Panel]:
    """Return the functions of every case with its first seed, where they were kept."""
    from ono.experiments.cells import FUNCTIONS_FILE
    from ono.experiments.eigenfunctions import Recovery

    panels = []
    for line in sorted(lines, key=lambda line: line.seed):
        case, file = line.recipe.partition("/")[2], Path(line.run) / FUNCTIONS_FILE
        if line.seed != lines[0].seed or not file.is_file():
            continue
        kept = Recovery.load(case, file)
        values = zip(kept.learned, kept.true, kept.learned_values, kept.true_values, strict=True)
        panels += [
            Panel(f"{case} {i}: μ {mu:.3f}, true {truth:.3f}", kept.x, learned, true)
            for i, (learned, true, mu, truth) in enumerate(values, 1)
        ]
    return panels
