"""From the ledger to tables and figures: ours beside the paper's.

Numbers of different budgets, of made and published data, and times of different devices never
stand in one table.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ono.data.info import Array
from ono.experiments.budgets import BUDGETS
from ono.experiments.catalogue import NAMES, experiment
from ono.experiments.entries import Ours, entry
from ono.experiments.facts import (
    Unfinished,
    counted,
    facts_of,
    failed_seeds,
    state_of,
    unfinished_cells,
)
from ono.experiments.grid import Cell, Experiment, Place, Table
from ono.experiments.ledger import Line, Source, latest
from ono.experiments.pictures import Picture, picture_file
from ono.experiments.published import PUBLISHED, Number

Group = tuple[str, Source, str]


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
    """A table ready to be written: every entry is text, ours first, what the paper says below.

    `facts` say what decided its numbers. Without `rows` nothing was run yet.
    """

    name: str
    title: str
    experiment: str
    facts: Sequence[tuple[str, str]]
    note: str
    head: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()
    axis: str | None = None
    curves: Sequence[Curve] = ()
    panels: Sequence[Panel] = ()
    strips: Sequence[Picture] = ()


def sheets(
    lines: Iterable[Line], names: Sequence[str] = NAMES, pictures: Path | None = None
) -> list[Sheet]:
    """Return every table of the paper, as far as the ledger fills it.

    `pictures` is where fields of finished cells are kept.
    """
    lines = list(lines)
    held = [line for line in latest(lines).values() if line.status == "complete"]
    made = []
    for name in names:
        chosen = experiment(name)
        for table in chosen.tables:
            made += _sheets_of(chosen, table, held, lines, pictures)
    return made


def _sheets_of(
    chosen: Experiment,
    table: Table,
    held: list[Line],
    every: list[Line],
    pictures: Path | None,
) -> list[Sheet]:
    cells = {(c.recipe, c.changes) for place in table.places.values() for c in place.cells}

    def own(lines: list[Line]) -> list[Line]:
        mine = [line for line in lines if line.experiment == chosen.name]
        return [line for line in mine if (line.recipe, line.changes) in cells]

    whole, others = own(held), own(every)
    groups = sorted({_group(line) for line in whole}, key=_rank)
    if not groups:
        last = {(line.recipe, line.changes): line.status for line in others}
        begun = Counter[str](last.values())
        told = [("run so far", counted(begun))] if begun else []
        return [
            Sheet(
                table.name,
                table.title,
                chosen.name,
                told,
                table.note,
                (table.axis or "", *table.columns),
            )
        ]
    lines = {group: _newest([line for line in whole if _group(line) == group]) for group in groups}
    fullest = max(groups, key=lambda group: len(lines[group]))
    made = []
    for group, some in lines.items():
        unfinished = unfinished_cells([line for line in others if line.budget == group[0]], some)
        sheet = _sheet(chosen, table, some, unfinished, pictures, every_row=group == fullest)
        made.append(replace(sheet, title=sheet.title + _distinction(group, groups)))
    return made


def _newest(lines: list[Line]) -> list[Line]:
    """Return the lines of the newest recipe and data of every cell, with all their seeds."""
    last = {
        (line.recipe, line.changes): (line.recipe_sha256, line.data_id)
        for line in sorted(lines, key=lambda line: line.time)
    }
    return [
        line
        for line in lines
        if last[line.recipe, line.changes] == (line.recipe_sha256, line.data_id)
    ]


def _group(line: Line) -> Group:
    """Return what the lines of one table have in common; times also the device."""
    return line.budget, line.data, line.device if line.data == "stand-in" else ""


def _distinction(group: Group, groups: Sequence[Group]) -> str:
    """Return what tells a table from others of the same title, to be put behind it."""
    words = (f"{group[0]} budget", f"{group[1]} data", group[2])
    own = [word for i, word in enumerate(words) if len({other[i] for other in groups}) > 1]
    return f" ({', '.join(filter(None, own))})" if own else ""


def _rank(group: Group) -> tuple[int, str, str]:
    budgets = list(reversed(BUDGETS))
    return budgets.index(group[0]) if group[0] in budgets else len(budgets), *group[1:]


def _sheet(
    chosen: Experiment,
    table: Table,
    lines: list[Line],
    unfinished: Unfinished,
    pictures: Path | None,
    *,
    every_row: bool,
) -> Sheet:
    """Return the table of some lines, with every row or only those that have a number of ours."""
    budget, source = lines[0].budget, lines[0].data
    ours = {key: _measured(place, lines, unfinished) for key, place in table.places.items()}
    printed = PUBLISHED[table.name].numbers if table.name in PUBLISHED else {}
    compare = budget not in BUDGETS or not BUDGETS[budget].is_smoke
    rows = []
    for row in table.rows:
        if not every_row and not any(ours.get((row, column)) for column in table.columns):
            continue
        entries = []
        for column in table.columns:
            place = table.places.get((row, column))
            state = "" if place is None else state_of(place.cells, unfinished)
            number = printed.get((row, column))
            entries.append(entry(place, ours.get((row, column)), number, state, compare=compare))
        rows.append((row, entries))
    return Sheet(
        f"{table.name}-{budget}-{source}",
        table.title,
        chosen.name,
        facts_of(chosen.name, table, lines, unfinished),
        table.note,
        (table.axis or "", *table.columns),
        rows,
        table.axis,
        _curves(table, ours, printed) if table.axis else (),
        _panels(lines, pictures) if table.name == "eigenfunctions" else (),
        _strips(table, lines, pictures),
    )


def _measured(place: Place, lines: list[Line], unfinished: Unfinished) -> Ours | None:
    """Return the means over seeds of the cells of a place that have results."""
    means, spreads, seeds = [], [], []
    for cell in place.cells:
        values = _values(cell, place.value, lines)
        if values:
            means.append(statistics.fmean(values))
            spreads.append(statistics.stdev(values) if len(values) > 1 else 0.0)
            seeds.append(len(values))
    failed = sum(failed_seeds(cell, unfinished) for cell in place.cells)
    return Ours(means, spreads, min(seeds), len(place.cells), failed) if means else None


def _values(cell: Cell, value: str, lines: list[Line]) -> list[float]:
    own = [line for line in lines if (line.recipe, line.changes) == (cell.recipe, cell.changes)]
    return [line.values[value] for line in own if value in line.values]


def _curves(
    table: Table,
    ours: Mapping[tuple[str, str], Ours | None],
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
                    [o.means[0] for _, o in there],
                    [o.spreads[0] for _, o in there],
                )
            )
        paper = [(float(c), printed[row, c]) for c in table.columns if (row, c) in printed]
        points = [(x, y) for x, y in paper if not isinstance(y, tuple)]
        if points:
            xs, ys = [x for x, _ in points], [y for _, y in points]
            curves.append(Curve(row, xs, ys, [0.0] * len(xs), published=True))
    return curves


def _strips(table: Table, lines: list[Line], pictures: Path | None) -> list[Picture]:
    """Return the fields of pictured cells, where kept."""
    if pictures is None:
        return []
    every = [cell for place in table.places.values() for cell in place.cells if cell.pictured]
    wanted = {(cell.recipe, cell.changes) for cell in every}
    own = [line for line in lines if (line.recipe, line.changes) in wanted and line.seed == 0]
    files = [picture_file(pictures, line) for line in own]
    return [Picture.load(file) for file in files if file.is_file()]


def _panels(lines: list[Line], pictures: Path | None) -> list[Panel]:
    """Return the functions of every case with its first seed, where they were kept."""
    from ono.experiments.eigenfunctions import Recovery

    panels = []
    for line in lines:
        if pictures is None or not (file := picture_file(pictures, line)).is_file():
            continue
        case = line.recipe.partition("/")[2]
        kept = Recovery.load(case, file)
        values = zip(kept.learned, kept.true, kept.learned_values, kept.true_values, strict=True)
        panels += [
            Panel(f"{case} {i}: μ {mu:.3f}, true {truth:.3f}", kept.x, learned, true)
            for i, (learned, true, mu, truth) in enumerate(values, 1)
        ]
    return panels
