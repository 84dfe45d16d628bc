"""Kill a process that writes checkpoints, at random moments, and look at what is left."""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from pathlib import Path

import pytest
import tiny
import torch

import ono
from ono.data.view import View
from ono.evaluate.card import Card
from ono.evaluate.operator import Operator
from ono.train import checkpoint as checkpoints

MOMENTS = 20


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    path = tmp_path_factory.mktemp("kill") / "data"
    data, config = tiny.dataset(path), tiny.recipe(path).model.config
    hashes = {"recipe_sha256": "0", "version": ono.__version__}
    view = View(data, data.rows("train"))
    return Operator(Card.of(view, model="ono", config=config, seed=0, **hashes))


def mark(operator: Operator, step: int) -> None:
    """Write the step into every weight, so that a checkpoint tells which step it is of."""
    with torch.no_grad():
        for weight in operator.parameters():
            weight.fill_(step)


def write_for_ever(directory: Path, operator: Operator, start: int, told: int) -> None:
    """Save step after step, telling each one once it is said to be safe."""
    step = start
    while True:
        step += 1
        mark(operator, step)
        saved = checkpoints.save(directory, step, operator, {"step": step, "twice": 2 * step})
        checkpoints.mark_best(saved, 1 / step)
        checkpoints.purge(directory, keep=2)
        os.write(told, step.to_bytes(8, "big"))


def start_writer(directory: Path, operator: Operator, start: int) -> tuple[int, int]:
    """Fork a writer; return its process number and where it tells its steps."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # no other thread holds a lock here
        child = os.fork()
    if child == 0:
        try:
            os.close(read)
            write_for_ever(directory, operator, start, write)
        finally:
            os._exit(1)
    os.close(write)
    return child, read


def kill_after(child: int, told: int, seconds: float) -> int:
    """Wait for a first step, then so long, kill, and return the last step that was told."""
    last = int.from_bytes(os.read(told, 8), "big")
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, "the writer ended before it was killed"
    while block := os.read(told, 8):
        last = int.from_bytes(block, "big")
    os.close(told)
    return last


def test_a_kill_always_leaves_a_whole_checkpoint(tmp_path: Path, operator: Operator) -> None:
    moments = random.Random(20240612)
    expected, leftovers, last = Operator(operator.card), 0, 0
    for _ in range(MOMENTS):
        child, told = start_writer(tmp_path, operator, last)
        last = kill_after(child, told, moments.uniform(0, 0.05))
        leftovers += any(tmp_path.glob(".*"))
        chosen, _ = checkpoints.latest(tmp_path)
        step = int(chosen.name.removeprefix("step-"))
        assert last <= step <= last + 1, "more than the save in progress was lost"
        assert checkpoints.read_state(chosen) == {"step": step, "twice": 2 * step}
        mark(expected, step)
        loaded = Operator.load(chosen).state_dict()
        for name, value in expected.state_dict().items():
            assert torch.equal(value, loaded[name])
        best = checkpoints.best(tmp_path)
        assert best is not None
        checkpoints.check(best)
        last = step
    assert leftovers > 0, "no kill fell into a save; the moments test nothing"
    checkpoints.purge(tmp_path, keep=2)
    assert not any(tmp_path.glob(".*"))
