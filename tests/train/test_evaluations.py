"""Evaluations of a run say of which checkpoint they are, and none is lost."""

from __future__ import annotations

import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny

from ono.errors import Interrupted
from ono.train import checkpoint as checkpoints
from ono.train import evaluations
from ono.train.evaluations import Evaluator, Row, read_evaluations
from ono.train.loop import fit, resume
from ono.train.state import Event


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was stopped after its first epoch, whose checkpoint is the best."""

    def stop(event: Event) -> None:
        if event.kind == "step" and event.state.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    data = tiny.dataset(tmp_path / "data")
    with pytest.raises(Interrupted):
        fit(tiny.recipe(data.path, epochs=4), tmp_path / "run", [stop])
    return tmp_path / "run"


def save_better(run: Path) -> Path:
    best = checkpoints.best(run / "checkpoints")
    assert best is not None
    better = Path(shutil.copytree(best, best.with_name("step-000000099")))
    checkpoints.mark_best(better, 0.0)
    return better


def test_an_evaluation_names_what_was_loaded(run: Path) -> None:
    evaluator = Evaluator(run)
    save_better(run)
    assert evaluator.on_grid(None).checkpoint == "step-000000003"
    assert Evaluator(run).on_grid(None).checkpoint == "step-000000099"
    assert [row.checkpoint for row in read_evaluations(run)] == ["step-000000003", "step-000000099"]


def test_evaluations_at_the_same_time_are_all_kept(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_slowly(path: Path) -> list[Row]:
        rows = read_evaluations(path)
        time.sleep(0.2)
        return rows

    monkeypatch.setattr(evaluations, "read_evaluations", read_slowly)
    evaluators = [Evaluator(run) for _ in range(3)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(Evaluator.on_grid, evaluators, [9, 5, 3]))
    assert [row.points for row in read_evaluations(run)] == [9, 25, 81]


def test_evaluations_go_with_their_checkpoint(run: Path) -> None:
    Evaluator(run).on_grid(None)
    assert len(read_evaluations(run)) == 1
    resume(run)
    assert "step-000000003" not in [p.name for p in checkpoints.saved(run / "checkpoints")]
    assert read_evaluations(run) == []


def test_what_is_no_list_of_evaluations_does_not_stop_training(run: Path) -> None:
    (run / "evaluations.json").write_text("{}")
    resume(run)
    assert (run / "evaluations.json").read_text() == "{}"
