"""Cells are run once, stopped cleanly, continued exactly, and recorded as they end."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ono.errors import InputError, Interrupted
from ono.experiments import cells, process, runner
from ono.experiments.budgets import BUDGETS
from ono.experiments.datasets import OutOfTime, provide
from ono.experiments.grid import Cell, Experiment, Job, Place, Table
from ono.experiments.jobs import Ended, Settings, open_line
from ono.experiments.ledger import Ledger, Line
from ono.experiments.plan import Work, works_of
from ono.experiments.runner import Summary, Watch, reproduce
from ono.train import checkpoint as checkpoints
from ono.train.loop import fit
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
    clock = SimpleNamespace(**(vars(time) | {"time": lambda: now[0]}))
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


def test_no_data_is_made_only_to_see_that_all_is_done_on_it(whole: Ledger, tmp_path: Path) -> None:
    settings = Settings(TINY, tmp_path / "data", tmp_path / "runs", "cpu")
    summary = reproduce([TWO], settings, whole)
    assert (summary.before, summary.left) == (2, 0)
    assert list(tmp_path.iterdir()) == []


def refuse(event: Event) -> None:
    raise AssertionError("it was trained again")


def test_experiments_with_a_cell_in_common_train_it_once(
    data: Path, whole: Ledger, tmp_path: Path
) -> None:
    """In one call, and when the ledger is all that is left of an earlier one."""
    first, *_ = whole.lines()
    shown = experiment(first.changes[len(SMALL) :], name="other")
    settings = Settings(TINY, data, tmp_path / "runs", "cpu")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.path.write_bytes(whole.path.read_bytes())
    summary = reproduce([TWO, shown], settings, ledger, watch=Watch(listeners=[refuse]))
    assert (summary.before, summary.by_status["complete"]) == (2, 1)
    line = ledger.lines()[-1]
    assert line.experiment == "other"
    assert (line.values, line.seconds, line.commit) == (first.values, first.seconds, first.commit)
    together = Ledger(tmp_path / "together.jsonl")
    reproduce([shown, replace(shown, name="same")], settings, together)
    assert [one.experiment for one in together.lines()] == ["other", "same"]
    assert results(together.lines()[:1]) == results([line])


def test_what_an_operator_refuses_is_recorded_and_tried_again(data: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    bad = experiment(("train.gradient_loss=0.1",), ("train.epochs=1",))
    settings = Settings(TINY, data, tmp_path / "runs", "cpu")
    for _ in range(2):
        summary = reproduce([bad], settings, ledger)
        assert summary.by_status["failed"] == 1
    lines = ledger.lines()
    assert [line.status for line in lines] == ["complete", "failed", "failed"]
    assert "point cloud" in lines[-1].reason
    assert lines[-1].values == {}


def test_an_error_of_any_kind_costs_its_own_cell_only(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(recipe: Any, path: Path, listeners: Any) -> None:
        if recipe.model.config.eigen.norm == "ln":
            raise ZeroDivisionError("by accident")
        fit(recipe, path, listeners)

    monkeypatch.setattr(cells, "fit", fail)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    summary = reproduce([TWO], Settings(TINY, data, tmp_path / "runs", "cpu"), ledger)
    assert summary.by_status == {"complete": 1, "failed": 1}
    (bad,) = [line for line in ledger.lines() if line.status == "failed"]
    assert "ZeroDivisionError: by accident (test_runner.py, line" in bad.reason


def test_numbers_that_are_none_are_no_result(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "_train", lambda *_: {"values": {"test": float("nan")}})
    ledger = Ledger(tmp_path / "ledger.jsonl")
    reproduce([TWO], Settings(TINY, data, tmp_path / "runs", "cpu"), ledger)
    assert [line.status for line in ledger.lines()] == ["failed", "failed"]
    assert "not finite: test" in ledger.lines()[0].reason


def test_data_that_cannot_be_made_fails_its_cells_and_no_others(
    data: Path, whole: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def provide(cell: Cell, *_: Any, **__: Any) -> None:
        if cell.benchmark == "darcy":
            tries.append(cell)
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner, "provide", provide)
    flow = {("fno", str(n)): Place((Cell("darcy/fno", (f"model.width={n}",)),)) for n in (8, 16)}
    both = [Experiment("flow", "", (Table("flow", "", flow),)), TWO]
    ledger = Ledger(tmp_path / "ledger.jsonl")
    summary = reproduce(both, Settings(TINY, data, tmp_path / "runs", "cpu"), ledger)
    assert summary.by_status == {"failed": 2, "complete": 2}
    assert len(tries) == 1, "once is enough"
    reasons = {line.reason for line in ledger.lines() if line.status == "failed"}
    assert all("no data: OSError: [Errno 28]" in reason for reason in reasons)
    assert results(ledger.lines()) == results(whole.lines())


def test_a_stopped_run_is_small_and_goes_on_elsewhere(data: Path, tmp_path: Path) -> None:
    """What is carried to another machine: the ledger and the run with its newest checkpoint."""
    here, there = tmp_path / "here", tmp_path / "there"
    one = experiment(("train.validate_every=1", "train.keep=4"))
    settings = Settings(TINY, data, here / "runs", "cpu")
    whole = Ledger(tmp_path / "whole.jsonl")
    reproduce([one], replace(settings, runs=tmp_path / "whole"), whole)
    watch = Watch(listeners=[at_step(8, lambda: signal.raise_signal(signal.SIGTERM))])
    with pytest.raises(Interrupted):
        reproduce([one], settings, Ledger(here / "ledger.jsonl"), watch=watch)
    (kept,) = here.glob("runs/*/checkpoints")
    assert len(list(kept.glob("step-*"))) == 2, "the newest and the best, of three"
    here.rename(there)
    ledger = Ledger(there / "ledger.jsonl")
    assert reproduce([one], replace(settings, runs=there / "runs"), ledger).complete
    assert results(ledger.lines()) == results(whole.lines())


@pytest.mark.parametrize("before", [3, None])
def test_a_cell_that_has_shared_its_device_or_may_have_says_so_when_it_goes_on_alone(
    before: int | None, data: Path, tmp_path: Path
) -> None:
    settings = Settings(TINY, data, tmp_path / "runs", "cpu")
    first, ledger = Ledger(tmp_path / "first.jsonl"), Ledger(tmp_path / "ledger.jsonl")
    watch = Watch(listeners=[at_step(4, lambda: signal.raise_signal(signal.SIGTERM))])
    with pytest.raises(Interrupted):
        reproduce([TWO], settings, first, watch=watch)
    (line,) = first.lines()
    ledger.append(line.model_copy(update={"shared": before}))
    assert reproduce([TWO], settings, ledger).complete
    assert [one.shared for one in ledger.lines()] == [before, before, 1]


def test_a_ledger_that_cannot_be_written_is_refused_before_work(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ledger = Ledger(tmp_path / "file" / "ledger.jsonl")
    with pytest.raises(InputError, match="cannot write to the ledger"):
        reproduce([TWO], Settings(TINY, data, tmp_path / "runs", "cpu"), ledger)
    assert not (tmp_path / "runs").exists()


def test_what_another_call_runs_is_counted(data: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    settings = Settings(TINY, data, tmp_path / "runs", "cpu")
    within: list[Summary] = []
    other = at_step(2, lambda: within.append(reproduce([TWO], settings, ledger)))
    reproduce([TWO], settings, ledger, watch=Watch(listeners=[other]))
    (summary,) = within
    assert (summary.elsewhere, summary.left, summary.by_status["complete"]) == (1, 1, 1)


def test_a_process_without_its_parent_saves_and_ends_quietly(data: Path, tmp_path: Path) -> None:
    settings = Settings(TINY, data, tmp_path / "runs", "cpu")
    (job, *_) = (work.job for work in works_of([TWO], TINY))
    provide(job.cell, TINY, data, device="cpu")
    answer, question = multiprocessing.Pipe(duplex=False)
    answer.close()
    child = multiprocessing.get_context("spawn").Process(
        target=process._work, args=(question, job, settings, os.getpid() + 1)
    )
    child.start()
    child.join()
    assert child.exitcode == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert [path.name for path in checkpoints.saved(run / "checkpoints")] == ["step-000000001"]


def test_asked_twice_processes_are_killed_and_once_they_are_asked(data: Path) -> None:
    for error, expected in ((KeyboardInterrupt, ["kill"]), (ValueError, [])):
        done: list[str] = []
        one = SimpleNamespace(
            kill=lambda done=done: done.append("kill"),
            terminate=lambda done=done: done.append("terminate"),
            join=lambda done=done: done.append("join"),
        )
        processes = process.Processes(1, Settings(TINY, data, data, "cpu"))
        processes.running = [SimpleNamespace(process=one)]  # type: ignore[list-item]
        with pytest.raises(error), processes:
            raise error
        assert done == [*expected, "terminate", "join"]


def test_a_lost_device_ends_the_call(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other cell of this process would fail as well."""
    monkeypatch.setattr(cells, "_train", lambda *_: {"values": {"test": float("nan")}})
    monkeypatch.setattr(runner, "device_is_lost", lambda: True)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    summary = reproduce([TWO], Settings(TINY, data, tmp_path / "runs", "cpu"), ledger)
    assert (summary.by_status["failed"], summary.left) == (1, 1)


def test_a_signal_while_data_is_made_is_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def provide(cell: Cell, *_: Any, stopped: Callable[[], bool], **__: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        assert stopped()
        raise OutOfTime("a signal came")

    monkeypatch.setattr(runner, "provide", provide)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with pytest.raises(Interrupted, match="2 of 2 cells not begun") as stopped:
        reproduce([TWO], Settings(TINY, data, tmp_path / "runs", "cpu"), ledger, jobs=2)
    assert stopped.value.signal_number == signal.SIGTERM
    assert ledger.lines() == []


def test_the_time_limit_stops_after_the_samples_at_work(tmp_path: Path) -> None:
    """What was solved until then is kept, and the next call goes on from there."""
    (job, *_) = (work.job for work in works_of([TWO], TINY))
    with pytest.raises(OutOfTime, match=r"before .* was made; the rest is made next time"):
        provide(job.cell, TINY, tmp_path, device="cpu", deadline=time.time() - 1)
    assert list(tmp_path.iterdir()) == [], "no time, no work"
    told: list[int] = []
    asked = iter([False, True])
    with pytest.raises(OutOfTime, match="a signal came"):
        provide(job.cell, TINY, tmp_path, device="cpu", stopped=lambda: next(asked))
    data = provide(
        job.cell, TINY, tmp_path, device="cpu", progress=lambda done, _: told.append(done)
    )
    assert told[0] == data.info.samples, "all were solved together, and kept"


class Stand:
    """Stands in for a process; it ends when it is looked at for the third time."""

    under_way: ClassVar[list[str]] = []
    seen: ClassVar[list[list[str]]] = []

    def __init__(self, work: Work) -> None:
        self.work, self.looks, self.shared = work, 0, 1
        self.process = SimpleNamespace(sentinel=None, terminate=lambda: None, join=lambda: None)

    @classmethod
    def start(cls, work: Work, settings: Settings) -> Stand:
        cls.under_way.append(work.job.cell.kind)
        cls.seen.append(list(cls.under_way))
        return cls(work)

    @property
    def over(self) -> bool:
        self.looks += 1
        return self.looks > 2

    def result(self, settings: Settings, signal_number: int | None) -> Ended:
        self.under_way.remove(self.work.job.cell.kind)
        return Ended(self.work.job, open_line(self.work.job, settings))


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> type[Stand]:
    monkeypatch.setattr(process, "WorkProcess", Stand)
    monkeypatch.setattr("ono.experiments.process.connection.wait", lambda *_, **__: None)
    Stand.seen.clear()
    return Stand


def timed() -> Experiment:
    cells = [Cell("elasticity/ono", (*SMALL, f"model.layers={n}"), "speed") for n in (1, 2)]
    places = {("ono", str(n)): Place((cell,)) for n, cell in enumerate(cells)}
    return Experiment("timed", "", (Table("timed", "", places),))


def test_speed_is_measured_alone(
    data: Path, tmp_path: Path, stand_ins: type[Stand], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is data made meanwhile, on the same device."""
    made_beside = []

    def watched(cell: Cell, *args: Any, **options: Any) -> None:
        made_beside.append((cell.kind, list(Stand.under_way)))
        provide(cell, *args, **options)

    monkeypatch.setattr(runner, "provide", watched)
    settings = Settings(TINY, data, data / "runs", "cpu")
    ledger = Ledger(tmp_path / "none.jsonl")
    reproduce([TWO, timed()], settings, ledger, jobs=2)
    assert stand_ins.seen == [["speed"], ["speed"], ["train"], ["train", "train"]]
    assert [beside for _, beside in made_beside] == [[], [], [], ["train"]]
    shared = {line.experiment: line.shared for line in ledger.lines()}
    assert shared == {"timed": 1, TWO.name: 2}


@pytest.mark.parametrize("long", [True, False])
def test_cells_with_short_steps_share_a_gpu(
    long: bool, data: Path, tmp_path: Path, stand_ins: type[Stand], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others run in this process, where they tell how far they are."""
    here = []

    def run_job(job: Job, settings: Settings, _: object) -> Ended:
        here.append(job.cell.kind)
        return Ended(job, open_line(job, settings))

    monkeypatch.setattr(runner, "sharing", lambda _: 4)
    monkeypatch.setattr(runner, "run_job", run_job)
    monkeypatch.setattr(runner, "fills_a_gpu", lambda cell, _: long and cell.kind == "train")
    ledger = Ledger(tmp_path / "none.jsonl")
    reproduce([TWO, timed()], Settings(TINY, data, data / "runs", "cpu"), ledger, jobs=None)
    assert here == (["speed"] * 2 + ["train"] * 2 if long else ["speed"] * 2)
    assert stand_ins.seen == ([] if long else [["train"], ["train", "train"]])


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
