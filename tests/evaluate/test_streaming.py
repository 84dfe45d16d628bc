from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from ono.data.info import Task
from ono.data.store import Dataset
from ono.errors import UnsupportedDomain
from ono.evaluate import operator as operators
from ono.evaluate.operator import Operator
from ono.evaluate.predict import predict
from ono.models.ono_stream import stream
from ono.train.loop import fit
from ono.train.prepare import cut
from ono.train.recipe import Recipe

SIDE = tiny.SIDE


def trained(data: Dataset, folder: Path, guess: str = "none") -> tuple[Operator, Recipe]:
    content = tiny.content(data.path, epochs=1)
    content["data"]["guess"] = guess
    recipe = Recipe.from_mapping(content)
    fit(recipe, folder)
    return Operator.load(folder), recipe


@pytest.mark.parametrize("guess", ["none", "affine"])
@pytest.mark.parametrize("task", ["steady", "timed"])
def test_streamed_values_are_physical(tmp_path: Path, task: Task, guess: str) -> None:
    steady = task == "steady"
    data = tiny.dataset(tmp_path / "data") if steady else tiny.series(tmp_path / "data", task)
    operator, recipe = trained(data, tmp_path / "run", guess)
    batch = cut(data, recipe).test.read(np.arange(3))
    time = None if batch.times is None else batch.times.expand(3, -1)
    with torch.no_grad():
        whole = operator(batch.domain, batch.values, time=time)
    for keep in (True, False):
        parts = operator.stream(batch.domain, batch.values, time=time, chunk=10, keep=keep)
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


def test_predictions_in_chunks_are_the_same(tmp_path: Path) -> None:
    operator, _ = trained(tiny.dataset(tmp_path / "data"), tmp_path / "run")
    values = tiny.fields(seed=3)[1][:3]
    whole, parts = (predict(operator, values, chunk=chunk).values for chunk in (None, 10))
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-5)
    assert (parts != whole).any(), "the chunks were not used"


def test_roll_outs_go_on_in_chunks(tmp_path: Path) -> None:
    operator, _ = trained(tiny.series(tmp_path / "data"), tmp_path / "run")
    known = np.random.default_rng(0).random((2, operator.card.history, SIDE, SIDE))
    whole, parts = (predict(operator, history=known, chunk=chunk).values for chunk in (None, 10))
    np.testing.assert_allclose(parts, whole, rtol=1e-3, atol=1e-4)


def test_many_points_are_taken_in_chunks_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, _ = trained(tiny.dataset(tmp_path / "data"), tmp_path / "run")
    values = tiny.fields(seed=3)[1][:3]
    calls: list[int] = []

    def noted(*args: Any, **options: Any) -> torch.Tensor:
        calls.append(options["chunk"])
        return stream(*args, **options)

    monkeypatch.setattr("ono.evaluate.operator.stream", noted)
    predict(operator, values)
    assert calls == []
    monkeypatch.setitem(operators._MANY, "cpu", 3 * SIDE * SIDE - 1)
    predict(operator, values)
    assert calls == [operator.chunk]


def test_other_operators_are_refused(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    content = tiny.content(data.path, epochs=1) | {"model": {"name": "deeponet"}}
    fit(Recipe.from_mapping(content), tmp_path / "run")
    operator = Operator.load(tmp_path / "run")
    values = tiny.fields(seed=3)[1][:3]
    assert predict(operator, values).values.shape == (3, SIDE * SIDE, 1)
    with pytest.raises(UnsupportedDomain, match="deeponet needs all points at once; only ono"):
        predict(operator, values, chunk=10)
