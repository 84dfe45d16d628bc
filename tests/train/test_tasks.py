"""Training the tasks with time: roll-outs and timed fields."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from ono.data.batches import load
from ono.data.info import Task
from ono.data.store import Dataset
from ono.errors import DataError, Interrupted, RecipeError
from ono.evaluate.metrics import channel_errors, relative_l2
from ono.evaluate.operator import Operator
from ono.evaluate.score import score
from ono.train.evaluations import Evaluator
from ono.train.execution import Epoch
from ono.train.loop import fit, resume
from ono.train.prepare import cut
from ono.train.recipe import Recipe
from ono.train.state import Event
from ono.train.step import at_times

CPU = torch.device("cpu")


def changed(data: Dataset, *, rollout: dict[str, Any] | None = None, **train: Any) -> Recipe:
    content = tiny.content(data.path, **train)
    if rollout is not None:
        content["rollout"] = rollout
    return Recipe.from_mapping(content)


def stop_and_resume(recipe: Recipe, run: Path) -> None:
    """Train with an interruption in the middle of an epoch."""

    def stop(event: Event) -> None:
        if event.kind == "step" and event.state.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        fit(recipe, run, [stop])
    resume(run)


def mean_predictor(data: Dataset, recipe: Recipe) -> float:
    """Return the error of answering with the mean training target."""
    parts = cut(data, recipe)
    train, test = (load(part, CPU) for part in (parts.train, parts.test))
    mean = train.all.target.mean(0, keepdim=True)  # type: ignore[attr-defined]
    target = test.all.target  # type: ignore[attr-defined]
    return float(relative_l2(mean.expand_as(target), target).mean())


@pytest.mark.parametrize(
    ("task", "rollout", "epochs"),
    [
        ("timed", None, 80),
        ("rollout", {"history": 2}, 30),
        ("rollout", {"history": 2, "forcing": "free"}, 30),
    ],
)
def test_tasks_with_time_are_learned(
    tmp_path: Path, task: Task, rollout: dict[str, Any] | None, epochs: int
) -> None:
    data = tiny.series(tmp_path / "data", task)
    recipe = changed(data, rollout=rollout, epochs=epochs, batch=4, validate_every=epochs)
    result = fit(recipe, tmp_path / "run")
    assert result.test < 0.5 * mean_predictor(data, recipe)
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(content["test_by_time"]) == (6 if task == "timed" else 4)


def test_only_the_trained_steps_are_seen_in_training(tmp_path: Path) -> None:
    data = tiny.series(tmp_path / "data")
    recipe = changed(data, rollout={"history": 2, "train_steps": 1})
    parts = cut(data, recipe)
    frames = [parts.train.times, parts.validation.times, parts.test.times]
    assert [None if times is None else len(times) for times in frames] == [1, 1, 4]
    fit(recipe, tmp_path / "run")
    operator = Operator.load(tmp_path / "run")
    assert operator.card.history == 2
    found = score(operator, load(parts.test, CPU))
    assert found.frames is not None
    assert found.frames.shape == (4, 4)
    (batch,) = load(parts.test, CPU).batches(torch.arange(4).numpy(), 4)
    with torch.no_grad():
        made = operator.answer(batch)
    kept = json.loads((tmp_path / "run" / "result.json").read_text())
    for name, times in (("test_seen", slice(1)), ("test_unseen", slice(1, None))):
        expected = relative_l2(made[:, times], batch.target[:, times]).mean()
        assert kept[name] == pytest.approx(float(expected), rel=1e-5)


def test_a_timed_operator_answers_at_any_time(tmp_path: Path) -> None:
    data = tiny.series(tmp_path / "data", "timed")
    recipe = changed(data)
    fit(recipe, tmp_path / "run")
    operator = Operator.load(tmp_path / "run")
    (batch,) = load(cut(data, recipe).test, CPU).batches(torch.arange(4).numpy(), 4)
    assert batch.times is not None
    together = operator.answer(batch)
    alone = operator(batch.domain, batch.values, time=batch.times[2].expand(4))
    torch.testing.assert_close(together[:, 2], alone, rtol=1e-4, atol=1e-5)
    between = operator(batch.domain, batch.values, time=torch.full((4,), 0.03))
    assert not torch.allclose(between, alone)


def test_a_time_may_enter_the_lower_flow(tmp_path: Path) -> None:
    data = tiny.series(tmp_path / "data", "timed")
    content = tiny.content(data.path)
    content["model"] = content["model"] | {"time": {"to": "g"}}
    fit(Recipe.from_mapping(content), tmp_path / "run")
    operator = Operator.load(tmp_path / "run")
    train = cut(data, Recipe.from_mapping(content)).train
    (batch,) = load(train, CPU).batches(torch.arange(12).numpy(), 12)
    assert batch.times is not None
    together = operator.answer(batch)
    alone = operator(batch.domain, batch.values, time=batch.times[1].expand(12))
    torch.testing.assert_close(together[:, 1], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", ["timed", "rollout"])
def test_resume_is_exact(tmp_path: Path, task: Task) -> None:
    data = tiny.series(tmp_path / "data", task)
    recipe = changed(data)
    fit(recipe, tmp_path / "whole")
    stop_and_resume(recipe, tmp_path / "cut")
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "cut")]
    assert metrics[0] == metrics[1]
    one, other = (Operator.load(tmp_path / name).state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_finished_rollout_is_evaluated_on_coarser_grids(tmp_path: Path) -> None:
    data = tiny.series(tmp_path / "data")
    fit(changed(data), tmp_path / "run")
    row = Evaluator(tmp_path / "run").on_grid(5)
    assert row.points == 25
    assert 0 < row.mean < 10


def test_a_timed_run_is_evaluated_at_scattered_points_and_a_rollout_says_why_not(
    tmp_path: Path,
) -> None:
    timed = tiny.series(tmp_path / "timed", "timed")
    fit(changed(timed), tmp_path / "run")
    evaluator = Evaluator(tmp_path / "run")
    on_nodes = evaluator.on_grid(None)
    at_nodes = evaluator.at_points(np.array(timed.coords))
    assert at_nodes.mean == pytest.approx(on_nodes.mean, rel=1e-3)
    frames = tiny.series(tmp_path / "frames")
    fit(changed(frames), tmp_path / "rolled")
    with pytest.raises(DataError, match="evaluate it on grids"):
        Evaluator(tmp_path / "rolled").at_points(np.array(frames.coords))


def test_random_times_make_a_step_and_resume_exactly(tmp_path: Path) -> None:
    data = tiny.series(tmp_path / "data", "timed")
    recipe = changed(data, times=2)
    fit(recipe, tmp_path / "whole")
    stop_and_resume(recipe, tmp_path / "cut")
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "cut")]
    assert metrics[0] == metrics[1]
    (batch,) = load(cut(data, recipe).train, CPU).batches(np.arange(12), 12)
    assert batch.times is not None
    epoch = Epoch.of(recipe, 0, 12, len(batch.times))
    assert epoch.times is not None
    for places in epoch.times:
        assert len(set(places)) == 2
        some = at_times(batch, torch.from_numpy(places))
        assert some.times is not None
        assert some.times.tolist() == batch.times[places].tolist()
        assert torch.equal(some.target, batch.target[:, places])


def test_a_loss_by_channel_hears_the_small_channel() -> None:
    true = torch.tensor([[[1000.0, 1.0], [2000.0, 2.0]]])
    pred = true * torch.tensor([1.0, 0.0])
    assert float(relative_l2(pred, true)) < 1e-2
    assert float(channel_errors(pred, true).mean()) == pytest.approx(0.5)


def test_sections_that_do_not_fit_the_task_are_refused(tmp_path: Path) -> None:
    steady = tiny.dataset(tmp_path / "steady")
    with pytest.raises(DataError, match="leave the section out"):
        cut(steady, changed(steady, rollout={"history": 2}))
    with pytest.raises(DataError, match=r"train\.times is 3, but .* is a steady task"):
        cut(steady, changed(steady, times=3))
    series = tiny.series(tmp_path / "series")
    with pytest.raises(DataError, match=r"rollout\.history is 6"):
        cut(series, changed(series, rollout={"history": 6}))
    with pytest.raises(DataError, match=r"rollout\.train_steps is 9"):
        cut(series, changed(series, rollout={"train_steps": 9}))
    with pytest.raises(RecipeError, match=r"rollout\.forcing"):
        changed(series, rollout={"forcing": "student"})


def test_one_output_of_several_can_be_learned(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    content = tiny.content(data.path)
    content["data"]["outputs"] = ["potentia"]
    with pytest.raises(DataError, match="did you mean potential"):
        cut(data, Recipe.from_mapping(content))
    content["data"]["outputs"] = ["potential"]
    fit(Recipe.from_mapping(content), tmp_path / "run")
    assert [c.name for c in Operator.load(tmp_path / "run").card.outputs] == ["potential"]
