"""Steps executed in different ways give the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from ono.data.batches import load
from ono.data.store import Dataset
from ono.errors import RecipeError
from ono.nn import fused_launch
from ono.train.execution import Epoch, execution
from ono.train.loop import fit
from ono.train.prepare import cut, new_operator
from ono.train.recipe import Recipe
from ono.train.step import Step

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def recipe(data: Dataset, **train: Any) -> Recipe:
    content = tiny.content(data.path)
    content["train"] = content["train"] | train
    return Recipe.from_mapping(content)


def test_an_epoch_is_a_function_of_recipe_and_number(tmp_path: Path) -> None:
    some = recipe(tiny.dataset(tmp_path), batch=5, epochs=3, times=2)
    epoch, again, other = (Epoch.of(some, number, 12, 4) for number in (1, 1, 2))
    assert sorted(epoch.order) == list(range(12))
    assert (epoch.order == again.order).all()
    assert (epoch.order != other.order).any()
    assert len(epoch.rates) == 3
    assert epoch.rates[0] == pytest.approx(some.optimiser.rate(3, 9))
    assert epoch.times is not None
    assert again.times is not None
    assert epoch.times.shape == (3, 2)
    assert (epoch.times == again.times).all()
    rest = epoch.after(1, 5)
    assert (rest.order == epoch.order[5:]).all()
    assert rest.times is not None
    assert (rest.times == epoch.times[1:]).all()
    assert (rest.rates == epoch.rates[1:]).all()


def test_captured_steps_need_data_on_a_gpu(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path)
    some = recipe(data, execution="captured", device="cpu")
    view = cut(data, some).train
    step = Step(new_operator(some, view), some)
    with pytest.raises(RecipeError, match=r"train\.execution=captured needs a GPU"):
        execution(some, step, load(view, torch.device("cpu")))
    assert execution(recipe(data), step, load(view, torch.device("cpu"))).form == "eager"


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_steps_agree_with_eager_ones(backend: str, tmp_path: Path) -> None:
    """In a process of its own: the hook that checks shapes breaks compilation."""
    data = tiny.dataset(tmp_path / "data")
    eager = fit(recipe(data, epochs=2), tmp_path / "eager")
    content = tiny.content(data.path)
    content["train"] |= {"execution": "compiled", "epochs": 2}
    script = f"""
import functools, json, sys, torch
from pathlib import Path
torch.compile = functools.partial(torch.compile, backend={backend!r})
from ono.train.loop import fit
from ono.train.recipe import Recipe
fit(Recipe.from_mapping(json.loads(sys.argv[1])), Path(sys.argv[2]))
"""
    compiled = tmp_path / "compiled"
    command = [sys.executable, "-c", script, json.dumps(content), str(compiled)]
    subprocess.run(command, check=True, env={**os.environ, "ONO_TEST_COMPILE": "1"})
    for name in ("train", "validation"):
        ours, theirs = (
            [json.loads(line)[name] for line in (run / "metrics.jsonl").read_text().splitlines()]
            for run in (compiled, eager.path)
        )
        assert ours == pytest.approx(theirs, rel=1e-5)


def losses_on_gpu(some: Recipe, data: Dataset) -> list[float]:
    view = cut(data, some).train
    device = torch.device("cuda")
    step = Step(new_operator(some, view).to(device), some)
    runner = execution(some, step, load(view, device))
    losses = []
    for number in range(some.train.epochs):
        for _ in runner.run(Epoch.of(some, number, len(view), view.free_times)):
            losses.append(step.tally.take_mean_loss())  # noqa: PERF401
    return losses


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("task", ["steady", "rollout", "timed"])
@pytest.mark.parametrize("changes", [{}, {"weight_average": 0.9}, {"precision": "bf16"}])
def test_captured_steps_agree_with_eager_ones(
    task: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Batches of five of twelve samples: the last batch is smaller and has its own recording."""
    data = tiny.dataset(tmp_path) if task == "steady" else tiny.series(tmp_path, task)
    if task == "timed":
        changes = {**changes, "times": 2}
    eager, captured = (
        losses_on_gpu(recipe(data, execution=form, batch=5, epochs=4, **changes), data)
        for form in ("eager", "captured")
    )
    assert len(eager) == 12
    tolerance = 2e-2 if changes.get("precision") else 1e-4
    assert captured == pytest.approx(eager, rel=tolerance)


@pytest.mark.gpu
@GPU
def test_a_bad_batch_changes_nothing_when_captured(tmp_path: Path) -> None:
    _, _, outputs = tiny.fields()
    outputs = outputs.copy()
    outputs[3] = np.nan
    data = tiny.dataset(tmp_path, outputs=outputs)
    some = recipe(data, execution="captured", batch=1, epochs=1)
    view = cut(data, some).train
    device = torch.device("cuda")
    good = tiny.dataset(tmp_path / "good")  # a normaliser of the bad data would be NaN itself
    operator = new_operator(recipe(good), cut(good, recipe(good)).train)
    step = Step(operator.to(device), some)
    runner = execution(some, step, load(view, device))
    epoch = Epoch.of(some, 0, len(view))
    weight = next(step.operator.parameters())
    before = weight.detach().clone()
    for part in runner.run(epoch):
        after = weight.detach().clone()
        assert bool((after == before).all()) == (int(part[0]) == 3)
        before = after
    assert int(step.tally.skipped) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not fused_launch.available(), reason="needs a CUDA device and Triton")
@pytest.mark.parametrize("attention", ["efficient", "galerkin"])
def test_fused_kernels_learn_what_plain_ones_learn(tmp_path: Path, attention: str) -> None:
    """Also where the rest of the step is compiled; each in a process without the hook."""
    data = tiny.dataset(tmp_path / "data")
    lower = {"heads": 4, "attention": attention}
    model = {"name": "ono", "width": 64, "layers": 2, "lower": lower, "eigen": {"heads": 4}}
    script = """
import json, sys
from pathlib import Path
from ono.train.loop import fit
from ono.train.recipe import Recipe
fit(Recipe.from_mapping(json.loads(sys.argv[1])), Path(sys.argv[2]))
"""
    forms: list[dict[str, Any]] = [
        {"kernels": "plain", "execution": "eager"},
        {"kernels": "fused", "execution": "captured", "compile": False},
        {"kernels": "fused", "execution": "captured", "compile": True},
        {"kernels": "fused", "execution": "captured", "compile": False, "streams": False},
    ]
    curves = []
    for number, form in enumerate(forms):
        options = {"epochs": 4, "device": "cuda", "precision": "fp32", **form}
        content = tiny.content(data.path, **options) | {"model": model}
        run = tmp_path / str(number)
        command = [sys.executable, "-c", script, json.dumps(content), str(run)]
        subprocess.run(command, check=True, env={**os.environ, "ONO_TEST_COMPILE": "1"})
        lines = (run / "metrics.jsonl").read_text().splitlines()
        curves.append([json.loads(line)["train"] for line in lines])
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert curves[2] == pytest.approx(curves[0], rel=1e-4)
    assert curves[3] == curves[1]
