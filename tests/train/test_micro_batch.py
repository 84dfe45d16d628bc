from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from ono.data.batches import in_order, load
from ono.data.info import Task
from ono.data.store import Dataset
from ono.data.view import Batch, View
from ono.errors import Interrupted, OutOfMemory, RecipeError
from ono.evaluate.operator import Operator
from ono.train import loop
from ono.train.loop import fit, resume
from ono.train.micro_batch import in_memory
from ono.train.prepare import cut, new_operator
from ono.train.recipe import Recipe
from ono.train.run import read_metrics
from ono.train.state import Event
from ono.train.step import Step


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("micro") / "data"
    tiny.dataset(path)
    return path


def with_covariance(data: Path, covariance: str, **train: Any) -> Recipe:
    eigen = {"functions": 4, "heads": 2, "covariance": covariance}
    return Recipe.from_mapping(
        tiny.content(data, **train) | {"model": tiny.MODEL | {"eigen": eigen}}
    )


def after_a_step(data: Path, recipe: Recipe) -> Step:
    view = cut(Dataset.open(data), recipe).train
    step = Step(new_operator(recipe, view), recipe)
    step(view.read(np.arange(8)))
    return step


@pytest.mark.parametrize("size", [1, 3, 4, 8, 100])
def test_parts_of_samples_that_never_meet_change_nothing(data: Path, size: int) -> None:
    whole = after_a_step(data, with_covariance(data, "sample"))
    parts = after_a_step(data, with_covariance(data, "sample", micro_batch=size))
    for p, q in zip(parts.operator.parameters(), whole.operator.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=2e-4, atol=1e-6)
    assert parts.tally.take_mean_loss() == pytest.approx(whole.tally.take_mean_loss(), rel=1e-6)


def test_a_batch_that_is_whitened_together_is_not_the_same(data: Path) -> None:
    whole = after_a_step(data, with_covariance(data, "batch"))
    parts = after_a_step(data, with_covariance(data, "batch", micro_batch=2))
    assert parts.tally.take_mean_loss() != pytest.approx(whole.tally.take_mean_loss(), rel=1e-6)


def test_the_running_covariance_is_that_of_the_whole_batch(data: Path) -> None:
    """The first layer's features do not depend on how a batch is whitened."""
    whole = after_a_step(data, with_covariance(data, "batch"))
    parts = after_a_step(data, with_covariance(data, "batch", micro_batch=3))
    name = "model.upper.0.attention.norm.moments.running"
    ours, theirs = (step.operator.state_dict()[name] for step in (parts, whole))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)
    assert float(ours.abs().max()) > 0


def test_series_and_times_are_cut_with_their_samples(tmp_path: Path) -> None:
    tasks: tuple[Task, ...] = ("rollout", "timed")
    for task in tasks:
        data = tiny.series(tmp_path / task, task)
        recipe = tiny.recipe(data.path)
        batch = cut(data, recipe).train.read(np.arange(5))
        parts = batch.split(2)
        assert [len(part.values) for part in parts] == [2, 2, 1]
        assert torch.equal(torch.cat([part.target for part in parts]), batch.target)
        assert torch.equal(torch.cat([part.rows for part in parts]), batch.rows)
        for part in parts:
            assert part.domain.batch == len(part.values)
            assert (part.history is None) == (batch.history is None)
    assert len(batch.split(None)) == len(batch.split(5)) == 1


def of_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")


def of_torch_on_cpu() -> None:
    torch.empty(1 << 58)


def of_numpy() -> None:
    np.empty(1 << 58)


class Small:
    """Memory for so many samples in training; counts how often it ran out."""

    def __init__(self, fits: int, run_out: Callable[[], None] = of_gpu) -> None:
        self.fits, self.shortages, self.run_out = fits, 0, run_out

    def operator(self, recipe: Recipe, view: View) -> Operator:
        operator = new_operator(recipe, view)

        def look(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            if module.training and len(args[1]) > self.fits:
                self.shortages += 1
                self.run_out()

        # In the middle of the network: statistics have been gathered by then.
        middle: torch.nn.Module = operator.get_submodule("model.upper.1")
        middle.register_forward_pre_hook(look)
        return operator


def warnings_of(path: Path) -> list[str]:
    events = map(json.loads, (path / "events.jsonl").read_text().splitlines())
    return [event["message"] for event in events if event["event"] == "warning"]


@pytest.mark.parametrize(
    ("run_out", "told"),
    [
        (of_gpu, "CUDA out of memory"),
        (of_torch_on_cpu, "can't allocate memory: you tried to allocate 1152921504606846976 bytes"),
        (of_numpy, "Unable to allocate 2.00 EiB for an array"),
    ],
)
def test_when_memory_runs_out_smaller_parts_give_the_same_run(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_out: Callable[[], None],
    told: str,
) -> None:
    fit(with_covariance(data, "batch", micro_batch=2), tmp_path / "parts")
    memory = Small(2, run_out)
    monkeypatch.setattr(loop, "new_operator", memory.operator)
    heard: list[str] = []
    fit(
        with_covariance(data, "batch"),
        tmp_path / "small",
        [lambda e: heard.append(e.details["message"]) if e.kind == "warning" else None],
    )
    assert memory.shortages == 2  # with 5 and with 3 at a time, then never again
    assert heard == warnings_of(tmp_path / "small")
    assert f"ran out with 5 samples at a time ({told}" in heard[0]
    assert "; going on with 3" in heard[0]
    ours, theirs = read_metrics(tmp_path / "small"), read_metrics(tmp_path / "parts")
    assert ours == theirs


def test_no_trace_is_left_in_a_running_covariance(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What whitens the next batch would hold the sums of the failed attempt."""
    fit(with_covariance(data, "ema", micro_batch=2), tmp_path / "parts")
    monkeypatch.setattr(loop, "new_operator", Small(fits=2).operator)
    fit(with_covariance(data, "ema"), tmp_path / "small")
    ours, theirs = (Operator.load(tmp_path / run) for run in ("small", "parts"))
    for (name, one), other in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        assert torch.equal(one, other), name
    assert read_metrics(tmp_path / "small") == read_metrics(tmp_path / "parts")


def test_a_resumed_run_keeps_the_smaller_parts(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = with_covariance(data, "batch", epochs=2)
    monkeypatch.setattr(loop, "new_operator", Small(fits=2).operator)
    fit(recipe, tmp_path / "whole")

    def stop(event: Event) -> None:
        if event.kind == "step" and event.state.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        fit(recipe, tmp_path / "stopped", [stop])
    again = Small(fits=2)
    monkeypatch.setattr(loop, "new_operator", again.operator)
    resume(tmp_path / "stopped")
    assert again.shortages == 0
    assert read_metrics(tmp_path / "stopped") == read_metrics(tmp_path / "whole")


def test_a_sample_that_does_not_fit_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Small(fits=0)
    monkeypatch.setattr(loop, "new_operator", memory.operator)
    with pytest.raises(OutOfMemory, match=r"one sample does not fit .* train\.recompute=true"):
        fit(tiny.recipe(data), tmp_path)
    assert memory.shortages == 4  # 5, 3, 2, 1


def test_other_errors_are_not_hidden(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(recipe: Recipe, view: View) -> Operator:
        operator = new_operator(recipe, view)

        def look(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            raise RuntimeError("a bug")

        operator.model.register_forward_pre_hook(look)
        return operator

    monkeypatch.setattr(loop, "new_operator", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        fit(tiny.recipe(data), tmp_path)


def test_recomputed_blocks_give_the_same_run(data: Path, tmp_path: Path) -> None:
    for name, wanted in (("plain", False), ("light", True)):
        fit(tiny.recipe(data, recompute=wanted), tmp_path / name)
    ours, theirs = read_metrics(tmp_path / "light"), read_metrics(tmp_path / "plain")
    for a, b in zip(ours, theirs, strict=True):
        assert a["train"] == pytest.approx(b["train"], rel=1e-5)
        assert a["validation"] == pytest.approx(b["validation"], rel=1e-5)


def test_a_model_without_such_blocks_is_refused(data: Path, tmp_path: Path) -> None:
    content = tiny.content(data, recompute=True) | {"model": {"name": "fno"}}
    with pytest.raises(RecipeError, match=r"train\.recompute is true, but fno has no blocks"):
        fit(Recipe.from_mapping(content), tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("option", [{"recompute": True}, {"micro_batch": 2}, {}], ids=str)
def test_recorded_steps_do_the_same(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: dict[str, Any]
) -> None:
    """Without an option memory runs out while a step is recorded."""
    eager = option or {"micro_batch": 2}
    fit(
        tiny.recipe(data, device="cuda", execution="eager", compile=False, **eager),
        tmp_path / "eager",
    )
    if not option:
        monkeypatch.setattr(loop, "new_operator", Small(fits=2).operator)
    fit(
        tiny.recipe(data, device="cuda", execution="captured", compile=False, **option),
        tmp_path / "captured",
    )
    assert len(warnings_of(tmp_path / "captured")) == (0 if option else 2)
    ours, theirs = read_metrics(tmp_path / "captured"), read_metrics(tmp_path / "eager")
    for a, b in zip(ours, theirs, strict=True):
        assert a["train"] == pytest.approx(b["train"], rel=1e-3)
        assert a["validation"] == pytest.approx(b["validation"], rel=1e-3)


def first_batch(data: Path, recipe: Recipe) -> tuple[Step, Batch]:
    view = cut(Dataset.open(data), recipe).train
    step = Step(new_operator(recipe, view), recipe)
    return step, next(iter(in_order(load(view, torch.device("cpu")), 5)))


@pytest.mark.parametrize(
    ("run_out", "told"), [(of_gpu, "CUDA out of memory"), (of_torch_on_cpu, "can't allocate .*")]
)
def test_an_update_is_not_made_twice(
    data: Path, monkeypatch: pytest.MonkeyPatch, run_out: Callable[[], None], told: str
) -> None:
    step, batch = first_batch(data, with_covariance(data, "batch"))
    twin, _ = first_batch(data, with_covariance(data, "batch"))
    twin(batch)

    def full(*args: Any) -> None:
        run_out()

    monkeypatch.setattr(step.tally, "add", full)
    with pytest.raises(OutOfMemory, match=rf"after an update \({told}\); resume from"):
        in_memory(step, 5, lambda: step(batch))
    assert torch.equal(step.flat.whole, twin.flat.whole)


def test_a_failed_attempt_leaves_no_batch_norm_changed(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"name": "u-fno", "width": 4, "modes": 2, "layers": 1}
    recipe = Recipe.from_mapping(tiny.content(data) | {"model": model})
    step, batch = first_batch(data, recipe)
    before = [statistic.clone() for statistic in step.batch_norms]
    gather, tries = step.flat.gather, []

    def full_once() -> torch.Tensor:
        tries.append([statistic.clone() for statistic in step.batch_norms])
        if len(tries) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return gather()

    monkeypatch.setattr(step.flat, "gather", full_once)
    twin, _ = first_batch(data, recipe)
    twin.micro_batch = 3
    twin(batch)
    in_memory(step, 5, lambda: step(batch))
    assert len(tries) == 2
    assert not all(map(torch.equal, tries[0], before))
    assert all(map(torch.equal, step.batch_norms, twin.batch_norms))
