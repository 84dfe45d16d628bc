"""Cells are run once, stopped cleanly, continued exactly, and recorded as they end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ono.errors import Interrupted
from ono.experiments import cells, runner
from ono.experiments.budgets import BUDGETS
from ono.experiments.cells import Settings
from ono.experiments.grid import Cell, Experiment, Place, Table
from ono.experiments.ledger import Ledger, Line
from ono.experiments.runner import Watch, reproduce
from ono.train.state import Event

SMALL = (
    "data.train=600",  # six, under this budget: three steps an epoch
    "model.width=8",
    "model.layers=1",
    "model.eigen.functions=4",
    "model.eigen.heads=2",
    "model.lower.heads=2",
)
TINY = replace(BUDGETS["smoke"], name="tiny", epochs=3)


def experiment(*extra: tuple[str, ...], name: str = "tiny") -> Experiment:
    """Return an experiment with a cell for each tuple of changes."""
    places = {
        ("ono", str(number)): Place((Cell("elasticity/ono", (*SMALL, *changes)),))
        for number, changes in enumerate(extra)
    }
    return Experiment(name, "tiny", (Table(name, "tiny", places),))


TWO = experiment(("model.eigen.norm=ortho",), ("model.eigen.norm=ln",))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """The ledger of a run that was never stopped."""
    root = tmp_path_factory.mktemp("whole")
    ledger = Ledger(root / "ledger.jsonl")
    reproduce([TWO], Settings(TINY, data, root / "runs", "cpu"), ledger)
    return ledger


def results(lines: list[Line]) -> list[dict[str, Any]]:
    return [line.result() for line in lines if line.status == "complete"]


def at_step(number: int, act: Callable[[], None]) -> Callable[[Event], None]:
    """Return a listener that acts once, when a training has taken so many steps."""
    acted = False

    def listen(event: Event) -> None:
        nonlocal acted
        if event.kind == "step" and event.state.step == number and not acted:
            acted = True
            act()

    return listen


def test_a_line_says_what_came_out_and_what_decided_it(whole: Ledger, data: Path) -> None:
    first, second = whole.lines()
    assert first.status == "complete"
    assert first.recipe == "elasticity/ono"
    assert first.changes == (*SMALL, "model.eigen.norm=ortho")
    assert (first.data, first.data_name) == ("made", "elasticity-quick-16")
    assert (first.budget, first.epochs, first.seed) == ("tiny", 3, 0)
    kept = json.loads((Path(first.run) / "result.json").read_text())
    assert first.values == {"test": kept["test"], "validation": kept["validation"]}
    assert first.data_sha256 == kept["dataset_sha256"]
    assert first.recipe_sha256 != second.recipe_sha256


@pytest.mark.parametrize("step", [2, 6, 9])  # within an epoch, at its end, at the very end
def test_a_signal_stops_and_the_next_call_gives_the_same_ledger(
    step: int, whole: Ledger, data: Path, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    settings = Settings(TINY, data, tmp_path / "runs", "cpu")
    watch = Watch(listeners=[at_step(step, lambda: signal.raise_signal(signal.SIGINT))])
    with pytest.raises(Interrupted, match="1 of 2 cells not begun") as stopped:
        reproduce([TWO], settings, ledger, watch=watch)
    assert stopped.value.signal_number == signal.SIGINT
    (line,) = ledger.lines()
    assert (line.status, line.epochs) == ("stopped", step // 3)
    summary = reproduce([TWO], settings, ledger)
    assert summary.complete
    assert [one.status for one in ledger.lines()] == ["stopped", "complete", "complete"]
    assert results(ledger.lines()) == results(whole.lines())


def test_the_time_limit_stops_within_a_cell_and_begins_no_other(
    whole: Ledger, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clock = SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic, strftime=time.strftime)
    monkeypatch.setattr(cells, "time", clock)
    monkeypatch.setattr(runner, "time", clock)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    settings = Settings(TINY, data, tmp_path / "runs", "cpu", deadline=10.0)
    watch = Watch(listeners=[at_step(4, lambda: now.__setitem__(0, 11.0))])
    summary = reproduce([TWO], settings, ledger, watch=watch)
    assert (summary.by_status["stopped"], summary.left) == (1, 1)
    assert not summary.complete
    later = replace(settings, deadline=None)
    assert reproduce([TWO], later, ledger).by_status["complete"] == 2
    assert results(ledger.lines()) == results(whole.lines())


def test_a_finished_cell_is_never_repeated(data: Path, whole: Ledger, tmp_path: Path) -> None:
    before = whole.path.read_bytes()
    summary = reproduce([TWO], Settings(TINY, data, tmp_path / "runs", "cpu"), whole)
    assert (summary.before, summary.left) == (2, 0)
    assert whole.path.read_bytes() == before
    assert not (tmp_path / "runs").exists()


def test_experiments_with_a_cell_in_common_train_it_once(data: Path, whole: Ledger) -> None:
    runs = whole.path.parent / "runs"
    other = experiment(("model.eigen.norm=ortho",), name="other")
    ledger = Ledger(runs.parent / "other.jsonl")

    def refuse(event: Event) -> None:
        raise AssertionError("it was trained again")

    reproduce([other], Settings(TINY, data, runs, "cpu"), ledger, watch=Watch(listeners=[refuse]))
    (line,) = ledger.lines()
    assert line.experiment == "other"
    assert line.values == whole.lines()[0].values


def test_what_an_operator_refuses_is_recorded_and_tried_again(data: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    bad = experiment(("train.gradient_loss=0.1",), ("train.epochs=1",))
    settings = Settings(TINY, data, tmp_path / "runs", "cpu")
    for _ in range(2):
        summary = reproduce([bad], settings, ledger)
        assert summary.by_status["failed"] == 1
    assert [line.status for line in ledger.lines()] == ["failed", "complete", "failed"]
    assert "point cloud" in ledger.lines()[0].reason


@pytest.mark.slow  # every process loads torch
def test_processes_side_by_side_give_the_same_lines(
    data: Path, whole: Ledger, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    settings = Settings(TINY, data, tmp_path / "runs", "cpu")
    summary = reproduce([TWO], settings, ledger, jobs=2)
    assert summary.by_status["complete"] == 2
    ours = sorted(results(ledger.lines()), key=str)
    assert ours == sorted(results(whole.lines()), key=str)
