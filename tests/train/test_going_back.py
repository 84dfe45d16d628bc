"""A run that goes back keeps what it had until it is there again."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from ono.errors import CheckpointError, Interrupted, OnoError
from ono.train import checkpoint as checkpoints
from ono.train.evaluations import Evaluator, read_evaluations
from ono.train.loop import fit, resume
from ono.train.run import Run
from ono.train.state import Event, Kind


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("back") / "data"
    tiny.dataset(path)
    return path


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six epochs of three steps, validated and saved after each second, and evaluated."""
    path = tmp_path_factory.mktemp("back") / "whole"
    fit(tiny.recipe(data, epochs=6, validate_every=2, keep=9), path)
    Evaluator(path).on_grid(None)
    return path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def content(run: Path) -> dict[str, bytes]:
    """Return all files but the log, which tells of every attempt, and the locks."""
    files = (path for path in run.rglob("*") if path.is_file())
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in files
        if file.name != "events.jsonl" and not file.name.endswith("lock")
    }


class Crash(Exception):
    pass


def crashing(kind: Kind) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if event.kind == kind:
            raise Crash

    return listen


@pytest.mark.parametrize("kind", ["start", "step", "epoch"])
def test_nothing_is_lost_before_the_first_new_checkpoint(
    whole: Path, run: Path, kind: Kind
) -> None:
    """The third epoch, which is the first again, is recorded and not saved."""
    before = content(whole)
    with pytest.raises(Crash):
        resume(run, [crashing(kind)], run / "checkpoints" / "step-000000006")
    assert content(run) == before
    with pytest.raises(CheckpointError, match="is finished"):
        resume(run)


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nothing_is_lost_where_no_new_checkpoint_can_be_written(
    whole: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OnoError, match=r"step 18 could not .* last good .*step-000000018; make"):
        resume(run, chosen=run / "checkpoints" / "step-000000006")
    assert content(run) == content(whole)


@pytest.mark.parametrize("step", [6, 12])
def test_the_path_that_is_taken_again_ends_as_before(whole: Path, run: Path, step: int) -> None:
    """Evaluations go even if the first new checkpoint bears the name of theirs."""
    resume(run, chosen=run / "checkpoints" / f"step-{step:09d}")
    before, after = content(whole), content(run)
    assert json.loads(after.pop("evaluations.json")) == []
    for name in ("metrics.jsonl", "checkpoints/best.json"):
        assert after[name] == before[name]
    weights = [name for name in before if name.endswith(".safetensors")]
    assert [after[name] for name in weights] == [before[name] for name in weights]
    assert len(weights) == 3


def test_the_first_new_checkpoint_takes_the_place_of_what_was_later(run: Path) -> None:
    def stop(event: Event) -> None:
        if event.kind == "step" and event.state.step == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        resume(run, [stop], run / "checkpoints" / "step-000000006")
    saved = [path.name for path in checkpoints.saved(run / "checkpoints")]
    assert saved == ["step-000000006", "step-000000008"]
    assert checkpoints.best(run / "checkpoints") == run / "checkpoints" / "step-000000006"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert Run(run).result() is None
    assert read_evaluations(run) == []


def test_a_run_without_checkpoints_keeps_its_metrics_until_it_has_one(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    before = content(run)
    with pytest.raises(Crash):
        resume(run, [crashing("epoch")])
    assert content(run) == before
    resume(run)
    assert content(run)["metrics.jsonl"] == before["metrics.jsonl"]
