"""What is run, once for all who want it, best value first."""

from __future__ import annotations

from typing import Any

import pytest

from ono.errors import InputError
from ono.experiments.budgets import BUDGETS
from ono.experiments.catalogue import NAMES, experiment
from ono.experiments.costs import minutes, value
from ono.experiments.grid import Cell
from ono.experiments.identity import identity
from ono.experiments.ledger import Line
from ono.experiments.listing import listing
from ono.experiments.plan import in_order, works_of
from ono.train.recipe import Recipe

SHORT = BUDGETS["short"]
EVERY = [experiment(name) for name in NAMES]


def line(cell: Cell, **changed: Any) -> Line:
    known: dict[str, Any] = {
        "experiment": "main",
        "recipe": cell.recipe,
        "changes": cell.changes,
        "recipe_sha256": identity(Recipe.load(cell.recipe, SHORT.changes(cell))),
        "data": "made",
        "seed": 0,
        "budget": "short",
        "status": "complete",
        "epochs": 100,
        "seconds": 120.0,
        "shared": 1,
    }
    return Line(**(known | changed))


def test_a_training_that_several_experiments_want_is_one_work() -> None:
    works = works_of(EVERY, SHORT)
    (shared,) = [w for w in works if Cell("elasticity/ono") in [job.cell for job in w.jobs]]
    wanted = {job.experiment for job in shared.jobs}
    assert {"main", "orthogonalisation", "scaling"} <= wanted
    assert "limited-data" not in wanted, "which has other data"
    jobs = [job for work in works for job in work.jobs]
    assert len(jobs) == len(set(jobs)) == sum(len(one.cells) for one in EVERY)
    assert len(works) < len(jobs)


def test_shards_share_the_work_without_overlap() -> None:
    every = works_of(EVERY, SHORT, seeds=2)
    parts = [works_of(EVERY, SHORT, seeds=2, shard=(i, 3)) for i in (1, 2, 3)]
    assert sorted(map(str, every)) == sorted(str(work) for part in parts for work in part)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_best_value_comes_first_and_seeds_after_each_other() -> None:
    works = works_of(EVERY, SHORT, seeds=2)
    ordered = in_order(works, EVERY, SHORT)
    seeds = [work.job.seed for work in ordered]
    assert seeds == sorted(seeds)
    trained = [str(w.job.cell) for w in ordered if w.job.cell.kind == "train"]
    assert trained.index("elasticity/ono") < trained.index("ns2d/ono")
    assert trained.index("darcy/ono") < trained.index("darcy/gnot")
    softmax = trained.index("pipe/ono model.lower.attention=softmax")
    assert softmax > 0.9 * len(trained) / 2, "hours of it, and the paper has no such number"
    kinds = [work.job.cell.kind == "speed" for work in ordered[: len(ordered) // 2]]
    assert kinds == sorted(kinds, reverse=True), "they need the device alone"


def test_what_was_stopped_late_comes_before_what_was_not_begun() -> None:
    cell = Cell("ns2d/ono")
    works = works_of([experiment("main")], SHORT)
    usual = in_order(works, [experiment("main")], SHORT)
    stopped = line(cell, status="stopped", epochs=99)
    after = in_order(works, [experiment("main")], SHORT, [stopped])
    names = [str(work.job.cell) for work in after]
    assert names[0] == "ns2d/ono"
    assert str(usual[0].job.cell) != "ns2d/ono"
    failed = in_order(
        works, [experiment("main")], SHORT, [line(usual[0].job.cell, status="failed")]
    )
    assert failed[-1] == usual[0], "it would use up the time of every call"


def test_only_some_cells_are_chosen_by_name() -> None:
    works = works_of(EVERY, SHORT, only="elasticity/ono model.eigen.norm=l?")
    assert [str(work.job.cell) for work in works] == ["elasticity/ono model.eigen.norm=ln"]
    with pytest.raises(InputError, match="no cell of main is called like 'sphere/"):
        works_of([experiment("main")], SHORT, only="sphere/*")
    with pytest.raises(InputError, match="'pip/\\*'"):
        works_of([experiment("main")], SHORT, only="darcy/ono, pip/*")
    both = works_of([experiment("main")], SHORT, only="darcy/ono, pipe/f*")
    assert [str(work.job.cell) for work in both] == ["pipe/f-fno", "darcy/ono"]


def test_minutes_are_those_of_a_line_like_it_if_there_is_one() -> None:
    cell = Cell("elasticity/ono")
    assert minutes(cell, SHORT, [line(cell)]) == (2.0, True)
    guess, measured = minutes(cell, SHORT, [line(Cell("pipe/ono"))])
    assert not measured
    assert minutes(cell, SHORT, [line(cell, shared=3)]) == (guess, False)
    assert guess == pytest.approx(0.3 + 125 * 100 * 3.1 / 60_000)
    deep = minutes(Cell("elasticity/ono", ("model.layers=30",)), SHORT)[0]
    assert (deep - 0.3) / (guess - 0.3) == pytest.approx(30 / 8)
    coarse = minutes(Cell("darcy/ono", ("data.resolution=43",)), SHORT)[0]
    assert coarse - 0.3 < (minutes(Cell("darcy/ono"), SHORT)[0] - 0.3) / 3
    plain = minutes(Cell("elasticity/ono", ("model.block=post",)), SHORT)[0]
    normed = minutes(Cell("elasticity/ono", ("model.eigen.norm=ln",)), SHORT)[0]
    assert 2 * guess < plain
    assert guess < normed < plain


def test_a_training_says_nothing_about_a_measurement_of_speed() -> None:
    runtime = experiment("runtime")
    (timed,) = [c for c in runtime.cells if c.recipe == "elasticity/geo-fno"]
    trained = line(Cell(timed.recipe, timed.changes))
    assert minutes(timed, SHORT, [trained]) == (0.3, False)
    found = {str(one.work.job.cell): one for one in listing([runtime], SHORT, [trained])}
    assert found[str(timed)].state == "-"
    measured = line(timed, experiment="runtime", epochs=0)
    found = {str(one.work.job.cell): one for one in listing([runtime], SHORT, [trained, measured])}
    assert found[str(timed)].state == "complete"


def test_every_cell_has_an_estimate_and_a_value() -> None:
    for one in EVERY:
        for cell in one.cells:
            assert minutes(cell, SHORT)[0] > 0
            assert value(one, cell) > 0


def test_a_list_says_what_is_done_and_how_far() -> None:
    main = experiment("main")
    done, begun, bad = Cell("darcy/fno"), Cell("darcy/ono"), Cell("pipe/ono")
    lines = [
        line(done),
        line(begun, status="stopped", epochs=40),
        line(bad, status="failed", recipe_sha256=""),
        line(Cell("darcy/lsm"), recipe_sha256="of an older recipe"),
    ]
    found = {str(one.work.job.cell): one for one in listing([main], SHORT, lines)}
    assert found["darcy/fno"].state == "complete"
    assert (found["darcy/fno"].minutes, found["darcy/fno"].measured) == (2.0, True)
    assert found["darcy/ono"].state == "at 40/100"
    assert found["darcy/ono"].minutes == pytest.approx(0.6 * minutes(begun, SHORT)[0])
    assert found["pipe/ono"].state == "failed"
    assert found["darcy/lsm"].state == "-"


def test_steps_without_fused_kernels_are_not_taken_for_quicker() -> None:
    many = ("model.lower.attention=nystrom", "model.lower.landmarks=256")
    for changes in ((), many, ("model.lower.attention=galerkin", "model.eigen.norm=bn")):
        fused, _ = minutes(Cell("darcy/ono", changes), SHORT)
        plain, _ = minutes(Cell("darcy/ono", (*changes, "model.block=post")), SHORT)
        assert fused <= plain
    few, _ = minutes(Cell("darcy/ono", many[:1]), SHORT)
    assert few < minutes(Cell("darcy/ono", many), SHORT)[0]
