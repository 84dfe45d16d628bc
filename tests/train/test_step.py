from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

import ono
from ono.data.batches import load, training_rows
from ono.data.store import Dataset
from ono.data.view import Batch, View
from ono.evaluate.calibrate import is_calibrated
from ono.evaluate.card import Card
from ono.evaluate.operator import Operator
from ono.nn.moments import Moments
from ono.train.flat_parameters import FlatParameters
from ono.train.recipe import Recipe
from ono.train.step import Step, sample_losses

RATE = 1e-3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return tiny.dataset(tmp_path_factory.mktemp("step") / "data")


def changed(data: Dataset, section: str = "train", **values: Any) -> Recipe:
    content = tiny.content(data.path)
    content[section] = content[section] | values
    return Recipe.from_mapping(content)


def begin(data: Dataset, recipe: Recipe) -> Step:
    card = Card.of(
        View(data, data.rows("train")),
        model=recipe.model.name,
        config=recipe.model.config,
        seed=0,
        recipe_sha256=recipe.sha256,
        version=ono.__version__,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        operator = Operator(card)
    operator.normaliser.fit(training_rows(View(data, data.rows("train"))))
    step = Step(operator, recipe)
    step.rate.fill_(RATE)
    return step


def batches(data: Dataset, size: int = 4) -> Iterator[Batch]:
    view = View(data, data.rows("train"))
    for start in range(0, len(view), size):
        yield view.read(np.arange(start, min(start + size, len(view))))


def poisoned(batch: Batch, field: str) -> Batch:
    spoilt: Tensor = getattr(batch, field).clone()
    spoilt[1, 7, 0] = math.nan if field == "target" else math.inf
    return replace(batch, target=spoilt) if field == "target" else replace(batch, values=spoilt)


def everything(step: Step) -> dict[str, Any]:
    """Return all that later steps depend on, besides the count of skipped steps."""
    parts: dict[str, Any] = {"operator": step.operator.state_dict(), "state": step.state()}
    if step.average is not None:
        parts["average"] = step.average.state_dict()
    parts = copy.deepcopy(parts)
    del parts["state"]["skipped"]
    return parts


def flat(content: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {name: content}
    return {k: v for key, inner in content.items() for k, v in flat(inner, f"{name}/{key}").items()}


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    left, right = flat(a), flat(b)
    assert left.keys() == right.keys()

    def same(x: Any, y: Any) -> bool:
        return torch.equal(x, y) if isinstance(x, Tensor) else bool(x == y)

    return [name for name in left if not same(left[name], right[name])]


def test_the_loss_is_the_relative_error_in_physical_units(data: Dataset) -> None:
    step = begin(data, changed(data))
    batch = next(batches(data))
    with torch.no_grad():
        losses = sample_losses(step.operator, batch)
        pred = step.operator(batch.domain, batch.values)
    for loss, p, u in zip(losses, pred, batch.target, strict=True):
        assert float(loss) == pytest.approx(float((p - u).norm() / u.norm()), rel=1e-6)


def test_the_gradient_term_is_that_of_central_differences(data: Dataset) -> None:
    step = begin(data, changed(data))
    batch = next(batches(data))
    with torch.no_grad():
        extra = sample_losses(step.operator, batch, gradient_loss=0.5) - sample_losses(
            step.operator, batch
        )
        pred = step.operator(batch.domain, batch.values)
    side = tiny.SIDE
    for got, p, u in zip(extra, pred, batch.target, strict=True):
        p, u = p.reshape(side, side), u.reshape(side, side)
        total = 0.0
        for a, b in ((p, u), (p.T, u.T)):
            slope, true = a[2:] - a[:-2], b[2:] - b[:-2]
            total += float((slope - true).norm() / true.norm())
        assert float(got) == pytest.approx(0.5 * total, rel=1e-4)


def test_a_step_reports_the_mean_over_samples_once(data: Dataset) -> None:
    step = begin(data, changed(data))
    first, second, third = batches(data, 5)
    expected = []
    for batch in (first, second, third):
        with torch.no_grad():
            expected.append(sample_losses(copy.deepcopy(step.operator).train(), batch))
        step(batch)
    assert len(third.rows) == 2
    assert step.tally.take_mean_loss() == pytest.approx(float(torch.cat(expected).mean()), rel=1e-6)
    assert step.tally.take_mean_loss() == 0


def averaging(data: Dataset) -> Recipe:
    """Return a recipe in which every kind of state exists: running covariance and averages."""
    options = {"covariance": "ema", "eval_covariance": "ema", "functions": 4, "heads": 2}
    content = tiny.content(data.path, weight_average=0.9, nonfinite="skip:5")
    return Recipe.from_mapping(content | {"model": tiny.MODEL | {"eigen": options}})


def without_reports(names: list[str]) -> list[str]:
    """Leave out what may tell of a bad batch: failed factorisations, and "trained since"."""
    return [name for name in names if not name.endswith((".failures", "_extra_state"))]


@pytest.mark.parametrize("field", ["target", "values"])
def test_a_bad_batch_changes_nothing(data: Dataset, field: str) -> None:
    step, never = begin(data, averaging(data)), begin(data, averaging(data))
    good = list(batches(data))
    step(good[0])
    never(good[0])
    before = everything(step)
    step(poisoned(good[1], field))
    assert int(step.tally.skipped) == 1
    assert without_reports(differences(before, everything(step))) == []
    step(good[2])
    never(good[2])
    assert without_reports(differences(everything(step), everything(never))) == []
    assert len(differences(before, everything(never))) > 100
    assert (int(step.tally.skipped), int(never.tally.skipped)) == (1, 0)


@pytest.mark.parametrize("field", ["target", "values"])
def test_a_bad_batch_changes_no_batch_norm(data: Dataset, field: str) -> None:
    content = tiny.content(data.path)
    content["model"] = {"name": "u-fno", "width": 4, "modes": 2, "layers": 1}
    content["train"] = content["train"] | {"weight_average": 0.9}
    step = begin(data, Recipe.from_mapping(content))
    good = list(batches(data))
    step(good[0])
    before = everything(step)
    step(poisoned(good[1], field))
    assert differences(everything(step), before) == []
    step(good[2])
    changed = differences(everything(step), before)
    assert any("average" in name and "running_var" in name for name in changed)


@pytest.mark.parametrize("field", ["target", "values"])
def test_a_bad_first_batch_changes_nothing(data: Dataset, field: str) -> None:
    step, never = begin(data, averaging(data)), begin(data, averaging(data))
    good = list(batches(data))
    step(poisoned(good[0], field))
    for name in ("operator", "average"):
        left, right = everything(step)[name], everything(never)[name]
        assert without_reports(differences(left, right)) == []
    moments = step.state()["moments"]
    assert all(not value.any() for moment in moments.values() for value in moment.values())
    step(good[1])
    never(good[1])
    assert without_reports(differences(everything(step), everything(never))) == []


def test_the_counter_of_the_optimiser_waits_too(data: Dataset) -> None:
    step = begin(data, changed(data))
    good = list(batches(data))
    step(good[0])
    step(poisoned(good[1], "target"))
    step(good[2])
    assert {float(m["step"]) for m in step.state()["moments"].values()} == {2.0}


def test_the_gradient_is_clipped(data: Dataset) -> None:
    batch = next(batches(data))
    free = begin(data, changed(data, "optimiser", clip=None))
    free(batch)
    raw = free.flat.whole.grad
    assert raw is not None
    tight = begin(data, changed(data, "optimiser", clip=float(raw.norm()) / 3))
    tight(batch)
    torch.testing.assert_close(tight.flat.whole.grad, raw / 3, rtol=1e-4, atol=1e-8)


def test_gradients_are_gathered_from_wherever_they_lie() -> None:
    """Of three parameters one has no gradient, and one has it the other way round in memory."""
    first, second, third = (torch.nn.Parameter(torch.zeros(*s)) for s in ((3,), (2, 5), (7,)))
    flat = FlatParameters([first, second, third])
    flat.whole.grad = torch.full_like(flat.whole, torch.nan)
    first.grad, second.grad = torch.arange(3.0), torch.arange(10.0).reshape(5, 2).mT
    whole = flat.gather()
    assert whole is flat.whole.grad
    assert whole[:3].tolist() == [0, 1, 2]
    assert torch.equal(whole[64:74].reshape(2, 5), torch.arange(10.0).reshape(5, 2).mT)
    assert float(whole.sum()) == 3 + 45


def test_running_covariances_stay_with_the_step(data: Dataset) -> None:
    """What is loaded, restored or calibrated is what the next step goes on with."""
    step = begin(data, changed(data, weight_average=0.5))
    some = list(batches(data))
    step(some[0])
    other = begin(data, changed(data, weight_average=0.5))
    other.operator.load_state_dict(step.evaluated.state_dict())
    other.restore(step.state())
    calibration = load(View(data, data.rows("train")), torch.device("cpu"))
    assert other.average is not None
    other.average.calibrate(calibration)
    other.operator.calibrate(calibration)
    for one in (step, other):
        one(some[1])
    kept = [part for part in other.operator.modules() if isinstance(part, Moments)]
    twins = [part for part in step.operator.modules() if isinstance(part, Moments)]
    assert kept
    for mine, theirs in zip(kept, twins, strict=True):
        assert float(mine.updates) == 2
        assert torch.equal(mine.running, theirs.running)


def test_averaged_weights_follow_their_formula(data: Dataset) -> None:
    step = begin(data, changed(data, weight_average=0.75))
    expected = [p.detach().clone() for p in step.operator.parameters()]
    for n, batch in enumerate(batches(data), start=1):
        step(batch)
        new = step.operator.parameters()
        keep = min(0.75, (1 + n) / (10 + n))
        expected = [keep * m + (1 - keep) * p.detach() for m, p in zip(expected, new, strict=True)]
    assert step.average is not None
    assert step.evaluated is step.average
    for mean, wanted in zip(step.average.parameters(), expected, strict=True):
        torch.testing.assert_close(mean.detach(), wanted, rtol=1e-5, atol=1e-7)
    moved = zip(step.average.parameters(), step.operator.parameters(), strict=True)
    assert any(not torch.equal(mean, raw) for mean, raw in moved)


def test_an_average_that_moved_is_not_calibrated_any_more(data: Dataset) -> None:
    step = begin(data, changed(data, weight_average=0.75))
    first = next(batches(data))
    assert step.average is not None
    step.average.calibrate(load(View(data, data.rows("train")), torch.device("cpu")))
    assert is_calibrated(step.average)
    step(first)
    assert not is_calibrated(step.average)


def test_a_frozen_parameter_stays_as_it_is(data: Dataset) -> None:
    recipe = changed(data, "optimiser", learning_rate=1e-2, weight_decay=0.1)
    step = begin(data, recipe)
    frozen, *others = step.operator.parameters()
    frozen.requires_grad_(False)
    before = [p.detach().clone() for p in (frozen, *others)]
    step = Step(step.operator, recipe)
    for batch in batches(data):
        step(batch)
    assert torch.equal(frozen, before[0])
    assert all(not torch.equal(p, old) for p, old in zip(others, before[1:], strict=True))


def test_without_averaging_the_trained_operator_is_evaluated(data: Dataset) -> None:
    step = begin(data, changed(data))
    assert step.evaluated is step.operator


def test_a_cpu_without_bfloat16_takes_float32(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ono.train.step.has_bfloat16", lambda kind: False)
    exact, asked = begin(data, changed(data)), begin(data, changed(data, precision="bf16"))
    for batch in batches(data):
        exact(batch)
        asked(batch)
    assert torch.equal(exact.flat.whole, asked.flat.whole)


def test_bfloat16_steps_run_and_differ_a_little(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Slow on a CPU that has to imitate them, but possible.
    monkeypatch.setattr("ono.train.step.has_bfloat16", lambda kind: True)
    exact, rough = begin(data, changed(data)), begin(data, changed(data, precision="bf16"))
    for batch in batches(data):
        exact(batch)
        rough(batch)
    assert int(rough.tally.skipped) == 0
    assert all(p.dtype == torch.float32 for p in rough.operator.parameters())
    a, b = exact.tally.take_mean_loss(), rough.tally.take_mean_loss()
    assert a != b
    assert b == pytest.approx(a, rel=0.02)


def test_a_restored_step_continues_with_the_same_bits(data: Dataset, tmp_path: Path) -> None:
    recipe = changed(data, weight_average=0.9)
    good = list(batches(data))
    whole = begin(data, recipe)
    whole(good[0])
    whole.evaluated.save(tmp_path)
    torch.save(whole.state(), tmp_path / "state.pt")
    again = begin(data, recipe)
    again.operator.load_state_dict(Operator.load(tmp_path).state_dict())
    again.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    for batch in good[1:]:
        whole(batch)
        again(batch)
    assert differences(everything(whole), everything(again)) == []
