"""Signals, locks and disks, on the real command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml

from ono.errors import Interrupted
from ono.train import checkpoint as checkpoints
from ono.train import loop
from ono.train.recipe import Recipe

ONO = Path(sysconfig.get_path("scripts")) / "ono"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe file for a run that takes long enough to be interrupted."""
    folder = tmp_path_factory.mktemp("signals")
    tiny.dataset(folder / "data")
    content = tiny.content(folder / "data", epochs=30)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("signals") / "whole"
    done = ono("train", str(recipe), "--out", str(path))
    assert done.returncode == 0, done.stderr
    return path


def ono(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ONO, *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False
    )


def start(recipe: Path, run: Path, *overrides: str) -> subprocess.Popen[str]:
    """Start training and return once an epoch is over."""
    process = subprocess.Popen(
        [ONO, "train", str(recipe), *overrides, "--out", str(run)],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch "):
            return process
    raise AssertionError("training ended before its first epoch did")


def finish(process: subprocess.Popen[str]) -> str:
    _, stderr = process.communicate(timeout=60)
    return stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_the_run_continues_exactly(
    recipe: Path, whole: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = start(recipe, tmp_path)
    process.send_signal(number)
    stderr = finish(process)
    assert process.returncode == code
    assert "Traceback" not in stderr
    newest, warnings = checkpoints.latest(tmp_path / "checkpoints")
    assert warnings == []
    assert f"saved {newest}" in stderr
    assert f"ono resume {tmp_path}" in stderr
    done = ono("resume", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "test error" in done.stdout
    metrics = (tmp_path / "metrics.jsonl").read_bytes()
    assert metrics == (whole / "metrics.jsonl").read_bytes()
    ours, theirs = (checkpoints.latest(path / "checkpoints")[0] for path in (tmp_path, whole))
    for name in ("model.safetensors", "model.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()


def test_a_second_interrupt_ends_at_once_and_says_what_is_kept(
    recipe: Path, whole: Path, tmp_path: Path
) -> None:
    """The first comes in the midst of an epoch, the second while its step is being saved."""
    program = tmp_path / "twice.py"
    program.write_text(TWICE)
    run = tmp_path / "run"
    words = [sys.executable, str(program), "train", str(recipe), "--out", str(run)]
    done = subprocess.run(
        words, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False
    )
    assert done.returncode == 130, done.stderr
    newest, warnings = checkpoints.latest(run / "checkpoints")
    assert warnings == []
    assert newest.name == "step-000000006"
    kept = f"{newest} (step 6, epoch 2)"
    first, second = done.stderr.splitlines()[-2:]
    assert first == (
        "stopping after this step, which is saved; Ctrl-C again stops at once and keeps " + kept
    )
    assert second == (
        f"stopped at once, at step 8 of 90; kept {kept}; continue with `ono resume {run}`"
    )
    assert ono("resume", str(run)).returncode == 0
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


TWICE = """
import os, signal, sys
from ono.cli.app import main
from ono.evaluate.operator import Operator
from ono.train.state import Event
import ono.cli.progress as progress

saving, show = Operator.save, progress._lines

def save(self, directory):
    if ".step-000000008." in directory.name:
        os.kill(os.getpid(), signal.SIGINT)
    saving(self, directory)

def listen(event):
    show(event)
    if event.kind == "step" and event.state.step == 8:
        os.kill(os.getpid(), signal.SIGINT)

Operator.save, progress._lines = save, listen
main()
"""


def test_an_interrupt_while_the_test_split_is_evaluated_is_told(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conclude(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(loop, "conclude", conclude)
    with pytest.raises(Interrupted, match=r"kept .*step-000000003 \(step 3, epoch 1\); continue"):
        loop.fit(Recipe.load(recipe, ["train.epochs=1"]), tmp_path / "run")


def test_a_directory_in_use_is_refused_and_a_stale_lock_is_not(
    recipe: Path, tmp_path: Path
) -> None:
    process = start(recipe, tmp_path, "train.epochs=100000")
    try:
        for arguments in (
            ["train", str(recipe), "--out", str(tmp_path)],
            ["resume", str(tmp_path)],
        ):
            refused = ono(*arguments)
            assert refused.returncode == 2
            assert f"{tmp_path} is being written by process {process.pid} on " in refused.stderr
            assert "--out" in refused.stderr
            assert "Traceback" not in refused.stderr
    finally:
        process.kill()
        finish(process)
    assert (tmp_path / ".lock").exists(), "the killed process left its lock"
    file = tmp_path / "recipe.yaml"
    file.write_text(file.read_text().replace("epochs: 100000", "epochs: 3"))
    resumed = ono("resume", str(tmp_path))
    assert "being written" not in resumed.stderr, "the lock of a dead process still counts"
    assert resumed.returncode == 2
    assert "was written with another recipe" in resumed.stderr


def test_a_killed_run_resumes_exactly(recipe: Path, whole: Path, tmp_path: Path) -> None:
    process = start(recipe, tmp_path)
    process.kill()
    finish(process)
    assert process.returncode == -signal.SIGKILL
    done = ono("resume", str(tmp_path))
    assert done.returncode == 0, done.stderr
    metrics = (tmp_path / "metrics.jsonl").read_bytes()
    assert metrics == (whole / "metrics.jsonl").read_bytes()


HANDLER = """
import os, signal
from ono.train.signals import stop_on_signals
before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
with stop_on_signals() as request:
    assert request.signal_number is None
    os.kill(os.getpid(), signal.{first})
    assert request.signal_number == signal.{first}
    if {again}:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGINT)
assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
"""


@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(("again", "code"), [(False, 0), (True, -signal.SIGINT)])
def test_one_signal_only_asks_and_the_next_interrupt_ends(
    first: str, again: bool, code: int
) -> None:
    program = HANDLER.format(first=first, again=again)
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == code
