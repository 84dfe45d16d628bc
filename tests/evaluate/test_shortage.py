from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from ono.data.batches import load
from ono.errors import OutOfMemory
from ono.evaluate.operator import Operator
from ono.evaluate.score import score
from ono.evaluate.shortage import halving
from ono.train.prepare import cut, new_operator


def of_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")


def of_torch_on_cpu() -> None:
    torch.empty(1 << 58)


def of_numpy() -> None:
    np.empty(1 << 58)


def of_one_dnn() -> None:
    raise RuntimeError("could not create a primitive")


def limited(operator: Operator, fits: int, run_out: Callable[[], None] = of_gpu) -> list[int]:
    """Let an operator run out of memory late in a pass; return what it was asked for."""
    asked: list[int] = []

    def look(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        asked.append(len(args[0]))
        if len(args[0]) > fits:
            run_out()

    operator.get_submodule("model.lower.1").register_forward_pre_hook(look)
    return asked


@pytest.mark.parametrize("run_out", [of_gpu, of_torch_on_cpu, of_numpy, of_one_dnn])
def test_smaller_batches_give_the_same_statistics_and_errors(
    tmp_path: Path, run_out: Callable[[], None]
) -> None:
    data = tiny.dataset(tmp_path / "data")
    recipe = tiny.recipe(data.path)
    source = load(cut(data, recipe).train, torch.device("cpu"))
    free, short = (new_operator(recipe, cut(data, recipe).train) for _ in range(2))
    asked = limited(short, 3, run_out)
    for operator in (free, short):
        operator.calibrate(source)
    assert asked == [12, 12, 8, 4, 2, 2, 2, 2, 2, 2]
    for (name, ours), theirs in zip(
        short.state_dict().items(), free.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7, msg=name)
    ours, theirs = score(short, source), score(free, source)
    torch.testing.assert_close(ours.errors, theirs.errors, rtol=1e-4, atol=1e-6)
    assert torch.equal(ours.rows, theirs.rows)


def test_a_sample_that_does_not_fit_is_named(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    recipe = tiny.recipe(data.path)
    view = cut(data, recipe).train
    operator = new_operator(recipe, view)
    limited(operator, 0)
    with pytest.raises(OutOfMemory, match=r"one sample does not fit .*\(CUDA out of memory\)"):
        operator.calibrate(load(view, torch.device("cpu")))


def test_other_errors_are_not_taken_for_a_shortage() -> None:
    def broken(batch: int) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        halving(8, broken)
