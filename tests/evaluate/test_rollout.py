"""Frames in, frames out: teacher forcing, free roll-out, and what an operator answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from ono.data.view import Batch, View, Window
from ono.data.windows import windows, with_history
from ono.domain import Domain
from ono.evaluate.rollout import roll_out


def batch(path: Path, known: int = 2, steps: int = 3) -> Batch:
    data = tiny.series(path)
    return View(data, data.rows("train"), window=Window(known, steps)).read(np.arange(4))


def test_teacher_forced_windows_are_the_frames_before_each_target(tmp_path: Path) -> None:
    part = batch(tmp_path)
    assert part.history is not None
    domain, values, target = windows(part)
    frames = torch.cat((part.history, part.target), 1)
    assert domain.batch == len(values) == len(target) == 12
    for sample in range(4):
        for step in range(3):
            at = 3 * sample + step
            assert torch.equal(values[at].T, frames[sample, step : step + 2, :, 0])
            assert torch.equal(target[at], frames[sample, step + 2])


def test_a_rollout_feeds_its_own_frames_back(tmp_path: Path) -> None:
    """With an exact rule - here the sum of the two latest frames - no truth is needed."""
    domain = Domain.grid((3, 3))
    history = torch.stack((torch.ones(1, 9, 1), torch.full((1, 9, 1), 2.0)), 1)

    def add(_: Domain, values: Tensor) -> Tensor:
        return values[..., 1:].sum(-1, keepdim=True)

    frames = roll_out(add, domain, torch.full((1, 9, 1), 7.0), history, 4)
    assert frames.shape == (1, 4, 9, 1)
    assert frames[0, :, 0, 0].tolist() == [3, 5, 8, 13]


def test_static_inputs_come_before_the_frames() -> None:
    values, frames = torch.zeros(1, 4, 1), torch.arange(3.0).reshape(1, 3, 1, 1).expand(1, 3, 4, 1)
    assert with_history(values, frames)[0, 0].tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("steps", [1, 3])
def test_the_first_step_of_a_rollout_is_the_first_teacher_forced_step(
    tmp_path: Path, steps: int
) -> None:
    part = batch(tmp_path, steps=steps)
    assert part.history is not None

    def mean(_: Domain, values: Tensor) -> Tensor:
        return values.mean(-1, keepdim=True)

    free = roll_out(mean, part.domain, part.values, part.history, steps)
    domain, values, _ = windows(part)
    forced = mean(domain, values).unflatten(0, (-1, steps))
    assert torch.equal(free[:, 0], forced[:, 0])
    assert steps == 1 or not torch.allclose(free[:, 1], forced[:, 1])
