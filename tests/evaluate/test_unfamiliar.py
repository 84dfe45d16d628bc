"""A prediction for inputs or times unlike those of training says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from ono.data.info import Array
from ono.data.store import Dataset, write_dataset
from ono.evaluate.operator import Operator
from ono.evaluate.predict import predict
from ono.evaluate.predict_data import view_for
from ono.evaluate.unfamiliar import distances, tell_of_view
from ono.train.loop import fit


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unfamiliar")
    for name, data in (
        ("steady", tiny.dataset(folder / "steady-data")),
        ("timed", tiny.series(folder / "timed-data", "timed")),
        ("rollout", tiny.series(folder / "rollout-data")),
    ):
        fit(tiny.recipe(data.path, epochs=1), folder / name)
    return folder


def test_data_of_the_same_kind_raises_no_doubt(home: Path) -> None:
    for name in ("steady", "timed", "rollout"):
        operator, data = Operator.load(home / name), Dataset.open(home / f"{name}-data")
        for split in ("train", "test"):
            assert tell_of_view(operator, view_for(operator, data, split)) == []
    values = tiny.fields(seed=7)[1]
    assert predict(Operator.load(home / "steady"), values).doubts == ()
    assert predict(Operator.load(home / "steady"), 5 * values).doubts == ()


def test_a_mistaken_unit_is_told_with_its_channel(home: Path) -> None:
    operator, values = Operator.load(home / "steady"), tiny.fields()[1][:5].copy()
    values[[1, 3]] *= 1000
    (doubt,) = predict(operator, values).doubts
    assert doubt.startswith("source of 2 of 5 samples is far from what it was in training, up to ")
    query = np.array([[0.5, 0.5]])
    assert predict(operator, values, query=query).doubts == (doubt,)
    data = Dataset.open(home / "steady-data")
    arrays = {name: np.array(array) for name, array in data.arrays.items()}
    arrays["inputs"] += 300
    celsius = write_dataset(home / "celsius", data.info, arrays)
    (doubt,) = tell_of_view(operator, view_for(operator, celsius, "test"))
    assert doubt.startswith("source of 4 of 4 samples is far")


def test_known_frames_are_looked_at_too(home: Path) -> None:
    operator, data = Operator.load(home / "rollout"), Dataset.open(home / "rollout-data")
    known: Array = np.array(data.outputs[:2, : operator.card.history])
    assert predict(operator, history=known).doubts == ()
    (doubt,) = predict(operator, history=1000 * known).doubts
    assert doubt.startswith(f"{data.info.outputs[0].name} of 2 of 2 samples is far")


def test_times_outside_those_of_training_are_counted(home: Path) -> None:
    operator, data = Operator.load(home / "timed"), Dataset.open(home / "timed-data")
    inputs, first, last = np.array(data.inputs[:2]), operator.card.times[0], operator.card.times[-1]
    assert predict(operator, inputs, times=np.linspace(first, last, 7)).doubts == ()
    (doubt,) = predict(operator, inputs, times=np.array([first - 1, last, last + 1])).doubts
    told = f"2 of 3 times lie outside those of training, {first:g} to {last:g}"
    assert doubt == told


def test_the_distance_is_a_root_mean_square_over_real_points(home: Path) -> None:
    operator = Operator.load(home / "steady")
    scale = operator.normaliser
    values = scale.input_mean + scale.input_std * torch.tensor([3.0, 4.0, 1e6])[None, :, None]
    found = distances(operator, values, mask=torch.tensor([[True, True, False]]))
    torch.testing.assert_close(found, torch.tensor([[12.5**0.5]]), rtol=1e-4, atol=0)
    batch = view_for(operator, Dataset.open(home / "steady-data"), "train").read(np.arange(12))
    square = distances(operator, batch.values).square().mean()
    assert float(square) == pytest.approx(1, rel=1e-4)
