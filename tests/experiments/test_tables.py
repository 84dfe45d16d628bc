"""From lines to tables: means, spreads, the paper's numbers, and what must not be mixed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ono.experiments.catalogue import NAMES, experiment
from ono.experiments.ledger import Line
from ono.experiments.tables import Sheet, sheets
from ono.report.results_page import write_results


def line(recipe: str = "darcy/ono", test: float = 0.009, **changed: Any) -> Line:
    known: dict[str, Any] = {
        "experiment": "main",
        "recipe": recipe,
        "recipe_sha256": "a",
        "data_sha256": "b",
        "data": "made",
        "seed": 0,
        "budget": "short",
        "status": "complete",
        "device": "a computer",
        "values": {"test": test},
        "time": "2026-01-01T00:00:00+0000",
    }
    return Line(**(known | changed))


def row(sheet: Sheet, name: str) -> dict[str, str]:
    (found,) = [r for r in sheet.rows if r[0] == name]
    return dict(zip(sheet.head, found, strict=True))


def test_ours_stand_beside_the_papers_with_their_difference() -> None:
    lines = [line(seed=seed, test=test) for seed, test in enumerate((0.008, 0.009, 0.010))]
    (sheet,) = sheets(lines, ["main"])
    assert row(sheet, "ono")["darcy"] == "0.0090 ± 0.0010"
    assert row(sheet, "ono, paper")["darcy"] == "0.0072"
    assert row(sheet, "ono, difference")["darcy"] == "+25 %"
    assert row(sheet, "ono")["pipe"] == "-"
    assert row(sheet, "ono, paper")["pipe"] == "0.0034"
    assert row(sheet, "ono, difference")["pipe"] == "-"
    assert row(sheet, "fno, paper")["pipe"] == "-"
    for word in ("Budget short: 100 epochs", "Seeds 0, 1, 2", "Table 1", "made here"):
        assert word in sheet.caption


def test_made_and_published_data_and_budgets_never_share_a_table() -> None:
    lines = [
        line(test=0.1),
        line(test=0.2, data="published", data_sha256="c"),
        line(test=0.3, budget="smoke", recipe_sha256="d"),
    ]
    found = sheets(lines, ["main"])
    assert [row(sheet, "ono")["darcy"] for sheet in found] == ["0.1000", "0.2000", "0.3000"]
    assert len({sheet.name for sheet in found}) == 3
    assert "the published files." in found[1].caption


def test_seeds_of_another_recipe_or_other_data_are_left_out() -> None:
    old = line(test=0.5, seed=1, recipe_sha256="old", time="2025-01-01T00:00:00+0000")
    (sheet,) = sheets([old, line(test=0.1)], ["main"])
    assert row(sheet, "ono")["darcy"] == "0.1000"


def test_only_complete_lines_count() -> None:
    lines = [line(status="stopped"), line("darcy/fno", status="failed", values={})]
    (sheet,) = sheets(lines, ["main"])
    assert "Not run yet: `ono reproduce main`" in sheet.caption
    assert row(sheet, "ono")["darcy"] == "-"


def test_sizes_are_ranges_over_benchmarks() -> None:
    _, table = experiment("runtime").tables
    cells = table.places["lsm", "parameters"].cells
    lines = [
        line(c.recipe, experiment="runtime", recipe_sha256=c.recipe, data="stand-in", values=v)
        for c, v in zip(cells, [{"parameters": 1.5 + i} for i in range(6)], strict=True)
    ]
    sheet = sheets(lines, ["runtime"])[-1]
    assert row(sheet, "lsm")["parameters"] == "1.50 to 6.50 M"
    assert row(sheet, "lsm, paper")["parameters"] == "4.80 to 13.90 M"
    assert "lsm, difference" not in [entries[0] for entries in sheet.rows], "not the same work"


def test_columns_that_are_numbers_become_curves() -> None:
    cell = experiment("super-resolution").tables[0].places["ono", "61"].cells[0]
    values = {"test": 0.01, "61": 0.02, "421": 0.04}
    ours = line(cell.recipe, changes=cell.changes, experiment="super-resolution", values=values)
    (sheet,) = sheets([ours], ["super-resolution"])
    (mine,) = [c for c in sheet.curves if c.name == "ono" and not c.published]
    assert (list(mine.x), list(mine.y)) == ([43, 61, 421], [0.01, 0.02, 0.04])
    (paper,) = [c for c in sheet.curves if c.name == "ono" and c.published]
    assert paper.y[-1] == 0.0386


@pytest.mark.parametrize("lines", [[], [line()]])
def test_pages_have_every_table(lines: list[Line], tmp_path: Path) -> None:
    made = sheets(lines)
    html, markdown = write_results(made, tmp_path)
    tables = [table for name in NAMES for table in experiment(name).tables]
    assert len(made) == len(tables)
    for table in tables:
        assert f"<h2>{table.title}</h2>" in html.read_text()
        assert f"## {table.title}" in markdown.read_text()
    assert "| ono, paper | 0.1195 |" in markdown.read_text()
    assert "0.1195" in html.read_text()
    assert not re.search(r"https?://(?!www\.w3\.org)", html.read_text())


def test_pictures_of_the_markdown_lie_beside_it_and_never_vary(tmp_path: Path) -> None:
    cell = experiment("super-resolution").tables[0].places["ono", "61"].cells[0]
    ours = [
        line(cell.recipe, test, changes=cell.changes, experiment="super-resolution", seed=seed)
        for seed, test in enumerate((0.01, 0.02))
    ]
    _, markdown = write_results(sheets(ours), tmp_path)
    (picture,) = re.findall(r"\]\((images/[^)]+)\)", markdown.read_text())
    before = (tmp_path / picture).read_bytes()
    write_results(sheets(ours), tmp_path)
    assert (tmp_path / picture).read_bytes() == before
