"""The affine first guess: what it explains, what it leaves, and that it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from ono.data.batches import load
from ono.data.guess import AffineGuess
from ono.data.info import Task
from ono.data.normalise import Normaliser
from ono.data.view import Batch, View, Window
from ono.domain import Domain
from ono.evaluate.operator import Operator
from ono.train.loop import fit
from ono.train.prepare import cut
from ono.train.recipe import Recipe

CPU = torch.device("cpu")


def fitted(batch: Batch, history: int = 0) -> tuple[Normaliser, AffineGuess]:
    inputs, outputs = batch.values.shape[-1], batch.target.shape[-1]
    normaliser = Normaliser(dim=2, in_channels=inputs, out_channels=outputs, history=history)
    normaliser.fit([batch])
    guess = AffineGuess(dim=2, in_channels=inputs + history * outputs, out_channels=outputs)
    guess.fit(normaliser, [batch])
    return normaliser, guess


def test_a_series_with_a_linear_law_is_guessed_exactly() -> None:
    """Frames that follow u' = 2 u - v + x leave nothing to learn."""
    generator = torch.Generator().manual_seed(0)
    coords = torch.rand(4, 30, 2, generator=generator)
    frames = list(torch.rand(2, 4, 30, 1, generator=generator))
    for _ in range(3):
        frames.append(1.2 * frames[-1] - 0.5 * frames[-2] + coords[..., :1])
    series = torch.stack(frames, 1)
    rows = torch.arange(4)
    batch = Batch(
        Domain(coords), torch.zeros(4, 30, 0), series[:, 2:], rows, torch.arange(3.0), series[:, :2]
    )
    _, guess = fitted(batch, history=2)
    assert float(guess.remainder.max()) < 1e-3


def test_a_trend_in_time_is_part_of_the_guess() -> None:
    domain, times = Domain.grid((4, 4), batch=3), torch.linspace(5.0, 9.0, 5)
    target = domain.coords[:, None, :, :1] + 0.3 * times[:, None, None]
    batch = Batch(domain, torch.zeros(3, 16, 0), target, torch.arange(3), times)
    normaliser, guess = fitted(batch)
    clock = normaliser.clock(times.expand(3, -1))
    placed, none = normaliser.place(domain), torch.zeros(3, 16, 0)
    answer = normaliser.decode(guess(torch.zeros_like(target), placed, none, clock))
    torch.testing.assert_close(answer, target, rtol=1e-4, atol=1e-4)
    one = normaliser.decode(guess(torch.zeros(3, 16, 1), placed, none, clock[:, 2]))
    torch.testing.assert_close(one, target[:, 2], rtol=1e-4, atol=1e-4)


def test_padding_does_not_change_the_guess() -> None:
    generator = torch.Generator().manual_seed(1)
    coords, values = torch.rand(2, 6, 2, generator=generator), torch.rand(2, 6, 1)
    target = torch.rand(2, 6, 1, generator=generator)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    rows = torch.arange(2)
    padded = Batch(Domain(coords, mask=mask), values, target, rows)
    junk = Batch(Domain(coords, mask=mask), values, torch.where(mask[..., None], target, 1e6), rows)
    torch.testing.assert_close(fitted(padded)[1].weight, fitted(junk)[1].weight)


def content(data: Path, **changes: Any) -> Recipe:
    base = tiny.content(data)
    base["data"]["guess"] = "affine"
    return Recipe.from_mapping(base | changes)


@pytest.mark.parametrize("task", ["steady", "timed", "rollout"])
def test_an_operator_with_a_guess_is_saved_and_queried(tmp_path: Path, task: Task) -> None:
    steady = task == "steady"
    data = tiny.dataset(tmp_path / "d") if steady else tiny.series(tmp_path / "d", task)
    recipe = content(data.path)
    fit(recipe, tmp_path / "run")
    operator = Operator.load(tmp_path / "run")
    assert operator.guess is not None
    assert float(operator.guess.weight.abs().max()) > 0
    (batch,) = load(cut(data, recipe).test, CPU).batches(np.arange(4), 4)
    with torch.no_grad():
        answer = operator.answer(batch)
        assert answer.shape == batch.target.shape
        if task != "rollout":
            time = None if batch.times is None else batch.times.expand(4, -1)
            there = operator.at(batch.domain, batch.values, batch.domain, time=time, chunk=7)
            torch.testing.assert_close(there, answer, rtol=1e-4, atol=1e-4)


def test_an_untrained_rollout_with_a_guess_is_no_worse_than_standing_still(tmp_path: Path) -> None:
    data = tiny.series(tmp_path / "data")
    view = View(data, data.rows("train"), window=Window(3, 3))
    batch = view.read(np.arange(12))
    normaliser, guess = fitted(batch, history=3)
    assert batch.history is not None
    spread = (batch.history[:, 1:] - batch.history[:, :-1]).std() / normaliser.output_std
    assert float(guess.remainder) < float(spread)
