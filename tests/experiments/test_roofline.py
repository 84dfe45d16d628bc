"""The work of a step, and the least time it could take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import tiny
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ono.data.store import Dataset
from ono.experiments.roofline import Peaks, Work, measure_peaks, step_work
from ono.train.prepare import cut, new_operator
from ono.train.recipe import Recipe


def work_of(data: Dataset, model: Mapping[str, object] | None = None, **train: object) -> Work:
    content = tiny.content(data.path, **train)
    content["model"] = {**content["model"], **(model or {})}
    recipe = Recipe.from_mapping(content)
    return step_work(recipe, cut(data, recipe).train)


def test_flop_are_those_of_the_weights_and_some_more(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    recipe = tiny.recipe(data.path)
    operator = new_operator(recipe, cut(data, recipe).train)
    weights = sum(m.weight.numel() for m in operator.modules() if isinstance(m, nn.Linear))
    # Forward, and the gradients of the inputs and of the weights; a product is 2 FLOP.
    linear = 6 * weights * recipe.train.batch * tiny.SIDE**2
    assert 0.9 * linear < work_of(data).flops < 2 * linear


def test_attention_counts_as_its_products(tmp_path: Path) -> None:
    data = tiny.cloud(tmp_path / "data")
    softmax = {"lower": {"attention": "softmax", "heads": 2}}
    fused = work_of(data, softmax).flops
    with sdpa_kernel(SDPBackend.MATH):
        assert work_of(data, softmax).flops == fused
    nearly_none = work_of(data, {"lower": {"attention": "galerkin", "heads": 2}}).flops
    assert fused > nearly_none


def test_work_grows_with_the_batch_but_weights_move_once(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    recipe = tiny.recipe(data.path)
    operator = new_operator(recipe, cut(data, recipe).train)
    weights = sum(parameter.numel() for parameter in operator.parameters())
    one, two = work_of(data, batch=1), work_of(data, batch=2)
    assert two.flops == 2 * one.flops
    assert 2 * one.bytes - two.bytes == 32 * weights


def test_work_is_that_of_the_recipe(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    plain, half = work_of(data), work_of(data, precision="bf16")
    assert half.flops == plain.flops
    assert 0.4 * plain.bytes < half.bytes < plain.bytes
    assert work_of(data, recompute=True, micro_batch=2) == plain
    timed = tiny.series(tmp_path / "timed", "timed")
    assert work_of(timed, times=2).flops < work_of(timed, times=4).flops < work_of(timed).flops


@pytest.mark.parametrize("precision", ["fp32", "bf16", "tf32"])
def test_peaks_are_measured_and_nothing_stays_changed(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    found = measure_peaks("cpu", precision)
    assert 1e8 < found.flops < 1e14
    assert 1e8 < found.bandwidth < 1e13
    assert torch.get_float32_matmul_precision() == before


def test_the_slower_of_products_and_moves_decides() -> None:
    peaks = Peaks(flops=1e12, bandwidth=1e10)
    assert peaks.milliseconds(Work(flops=1e9, bytes=1e6)) == pytest.approx(1.0)
    assert peaks.milliseconds(Work(flops=1e9, bytes=1e8)) == pytest.approx(10.0)
