"""From lines to tables: means, spreads, the paper's numbers, and what must not be mixed."""

from __future__ import annotations

from typing import Any

from ono.experiments.budgets import BUDGETS
from ono.experiments.catalogue import experiment
from ono.experiments.grid import Cell
from ono.experiments.identity import cell_identity
from ono.experiments.ledger import Line
from ono.experiments.tables import Sheet, sheets


def line(recipe: str = "darcy/ono", test: float = 0.009, **changed: Any) -> Line:
    known: dict[str, Any] = {
        "experiment": "main",
        "recipe": recipe,
        "recipe_sha256": "a",
        "data_id": "b",
        "data": "made",
        "seed": 0,
        "budget": "short",
        "status": "complete",
        "device": "a computer",
        "values": {"test": test},
        "time": "2026-01-01T00:00:00+0000",
    }
    return Line(**(known | changed))


def row(sheet: Sheet, name: str) -> dict[str, tuple[str, str]]:
    (found,) = [entries for title, entries in sheet.rows if title == name]
    return dict(zip(sheet.head[1:], found, strict=True))


def test_ours_stand_beside_the_papers_with_their_difference() -> None:
    lines = [line(seed=seed, test=test) for seed, test in enumerate((0.008, 0.009, 0.010))]
    (sheet,) = sheets(lines, ["main"])
    assert row(sheet, "ono")["darcy"] == ("0.0090 ± 0.0010", "paper 0.0072, +25 %")
    assert row(sheet, "ono")["pipe"] == ("–", "paper 0.0034"), "not run"
    assert row(sheet, "fno")["pipe"] == ("", ""), "it cannot work there"
    assert row(sheet, "transolver")["darcy"] == ("–", ""), "not in the paper"


def test_a_table_says_what_decided_its_numbers() -> None:
    lines = [line(seed=seed, device=f"machine {seed}", commit="abc") for seed in (0, 2)]
    (sheet,) = sheets(lines, ["main"])
    facts = dict(sheet.facts)
    assert facts["budget"] == "short, 100 epochs, all samples"
    assert facts["data"].startswith("made here from physics")
    assert facts["seeds"].startswith("0, 2; ±")
    assert (facts["device"], facts["commit"]) == ("machine 0, machine 2", "abc")
    assert facts["cells"] == "1 complete of 61"
    assert facts["run by"] == "ono reproduce main --budget short --seeds 3"
    assert facts["paper"].startswith("Table 1")


def test_cells_that_have_no_result_say_how_far_they_are() -> None:
    lines = [
        line("darcy/fno", status="stopped", epochs=40, values={}),
        line("darcy/lsm", status="failed", values={}, recipe_sha256="", reason="no memory"),
        line(status="stopped", epochs=3, values={}, seed=1),
        line(test=0.01),
    ]
    (sheet,) = sheets(lines, ["main"])
    assert row(sheet, "fno")["darcy"] == ("at epoch 40", "paper 0.0108")
    assert row(sheet, "lsm")["darcy"] == ("failed", "paper 0.0069")
    assert row(sheet, "ono")["darcy"][0] == "0.0100", "another seed of it is under way"
    facts = dict(sheet.facts)
    assert facts["cells"] == "1 stopped, 1 failed, 1 complete of 61"
    assert facts["failed"] == "darcy/lsm: no memory"


def test_a_seed_that_failed_is_told_beside_those_that_did_not() -> None:
    lines = [
        line(test=0.01),
        line(test=0.01, seed=1),
        line(status="failed", values={}, recipe_sha256="", reason="diverged", seed=2),
    ]
    (sheet,) = sheets(lines, ["main"])
    assert row(sheet, "ono")["darcy"][0] == "0.0100 ± 0.0000 (1 failed)"
    assert dict(sheet.facts)["failed"] == "darcy/ono, seed 2: diverged"
    assert dict(sheet.facts)["cells"] == "1 complete of 61"


def test_numbers_of_an_older_recipe_say_so() -> None:
    present = cell_identity(Cell("darcy/fno"), BUDGETS["short"])
    (sheet,) = sheets([line(), line("darcy/fno", recipe_sha256=present)], ["main"])
    assert [told for name, told in sheet.facts if name == "older recipe"] == ["darcy/ono"]


def test_a_table_says_nothing_of_lines_that_newer_ones_replace() -> None:
    today = cell_identity(Cell("darcy/ono"), BUDGETS["short"])
    before = line(test=0.02, commit="before")
    after = line(recipe_sha256=today, commit="after", time="2026-02-01T00:00:00+0000")
    (sheet,) = sheets([before, after], ["main"])
    facts = dict(sheet.facts)
    assert row(sheet, "ono")["darcy"][0] == "0.0090"
    assert (facts["commit"], "older recipe" in facts) == ("after", False)


def test_times_of_two_devices_have_two_tables() -> None:
    cells = [c for c in experiment("runtime").cells if "train.batch=8" in c.changes]
    lines = [
        line(c.recipe, changes=c.changes, experiment="runtime", data="stand-in", device=device,
             recipe_sha256=device, values={"epoch": 1.0})
        for c in cells for device in ("a GPU", "a CPU")
    ]  # fmt: skip
    runtime = [s for s in sheets(lines, ["runtime"]) if s.title.startswith("Runtime")]
    assert [sheet.title for sheet in runtime] == ["Runtime (a CPU)", "Runtime (a GPU)"]
    assert [dict(sheet.facts)["device"] for sheet in runtime] == ["a CPU", "a GPU"]


def test_a_smoke_run_is_not_compared() -> None:
    (sheet,) = sheets([line(budget="smoke")], ["main"])
    assert row(sheet, "ono")["darcy"] == ("0.0090", "paper 0.0072")


def test_made_and_published_data_and_budgets_never_share_a_table() -> None:
    lines = [
        line(test=0.3, budget="smoke", recipe_sha256="d"),
        line(test=0.1),
        line(test=0.2, data="published", data_id="c"),
    ]
    found = sheets(lines, ["main"])
    shown = [row(sheet, "ono")["darcy"][0] for sheet in found]
    assert shown == ["0.1000", "0.2000", "0.3000"], "the larger budget first"
    assert len({sheet.name for sheet in found}) == 3
    assert [sheet.title for sheet in found] == [
        "Main results (short budget, made data)",
        "Main results (short budget, published data)",
        "Main results (smoke budget, made data)",
    ]
    assert dict(found[1].facts)["data"] == "the published files"


def test_only_the_fullest_of_several_tables_shows_what_is_missing() -> None:
    paper = line("darcy/ono", budget="paper", recipe_sha256="p")
    short = [line(), line("darcy/fno", recipe_sha256="f")]
    large, full = sheets([paper, *short], ["main"])
    assert [name for name, _ in large.rows] == ["ono"]
    assert len(full.rows) == len(experiment("main").tables[0].rows)


def test_seeds_of_another_recipe_or_other_data_are_left_out() -> None:
    early = "2025-01-01T00:00:00+0000"
    old = line(test=0.5, seed=1, recipe_sha256="old", time=early)
    elsewhere = line(test=0.7, seed=2, data_id="other", time=early)
    same = line(test=0.1, seed=3, data_sha256="last bits differ")
    (sheet,) = sheets([old, elsewhere, same, line(test=0.1)], ["main"])
    assert row(sheet, "ono")["darcy"][0] == "0.1000 ± 0.0000"


def test_only_complete_lines_count() -> None:
    lines = [line(status="stopped"), line("darcy/fno", status="failed", values={})]
    (sheet,) = sheets(lines, ["main"])
    assert not sheet.rows
    assert sheet.facts == [("run so far", "1 stopped, 1 failed")]


def test_sizes_are_ranges_over_benchmarks() -> None:
    _, table = experiment("runtime").tables
    cells = table.places["lsm", "parameters"].cells
    lines = [
        line(
            c.recipe,
            changes=c.changes,
            experiment="runtime",
            recipe_sha256=c.recipe,
            data="stand-in",
            values=v,
        )
        for c, v in zip(cells, [{"parameters": 1.5 + i} for i in range(6)], strict=True)
    ]
    sheet = sheets(lines, ["runtime"])[-1]
    assert row(sheet, "lsm")["parameters"] == ("1.50 to 6.50 M", "paper 4.80 to 13.90 M")
    part = sheets(lines[:2], ["runtime"])[-1]
    assert row(part, "lsm")["parameters"][0] == "1.50 to 2.50 M (2 of 6)"


def test_columns_that_are_numbers_become_curves() -> None:
    cell = experiment("super-resolution").tables[0].places["ono", "61"].cells[0]
    values = {"test": 0.01, "61": 0.02, "421": 0.04}
    ours = line(cell.recipe, changes=cell.changes, experiment="super-resolution", values=values)
    (sheet,) = sheets([ours], ["super-resolution"])
    (mine,) = [c for c in sheet.curves if c.name == "ono" and not c.published]
    assert (list(mine.x), list(mine.y)) == ([43, 61, 421], [0.01, 0.02, 0.04])
    (paper,) = [c for c in sheet.curves if c.name == "ono" and c.published]
    assert paper.y[-1] == 0.0386
