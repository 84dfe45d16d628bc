"""Coordinates spread by rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from ono.data.spread import Spread
from ono.domain import Domain
from ono.errors import DataError, RecipeError
from ono.evaluate.operator import Operator
from ono.evaluate.predict import count_outside, predict, scattered_points
from ono.train.loop import fit
from ono.train.prepare import cut, new_operator
from ono.train.recipe import Recipe


def crowded(seed: int, points: int = 400) -> torch.Tensor:
    """Return points that crowd around the origin and reach far."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randn(points, 2, generator=generator)
    return place * place.abs() ** 2


@given(st.integers(0, 1000))
def test_the_order_of_coordinates_is_kept(seed: int) -> None:
    spread = Spread(2)
    points = crowded(seed)
    spread.fit(points)
    made = spread(points[None])[0]
    for axis in range(2):
        order = points[:, axis].argsort()
        assert (made[order, axis].diff() >= 0).all()
    assert 0 <= float(made.min()) <= float(made.max()) <= 1


def test_points_are_even_after_spreading() -> None:
    spread = Spread(2)
    spread.fit(crowded(0, 5000))
    made = spread(crowded(1, 5000)[None])[0]
    counts = torch.histc(made[:, 0], 10, 0, 1)
    assert float(counts.min()) > 0.8 * 500
    box = crowded(1, 5000)[:, 0]
    counts = torch.histc(box, 10)
    assert float(counts.max()) > 0.6 * 5000  # in a box most share a bin


def test_an_even_line_stays_where_it_is_and_goes_on_beyond_its_ends() -> None:
    spread = Spread(1)
    spread.fit(torch.linspace(2, 6, 200)[:, None])
    line = torch.tensor([[[1.0], [2.0], [4.0], [6.0], [8.0]]])
    expected = torch.tensor([-0.25, 0, 0.5, 1, 1.5])
    torch.testing.assert_close(spread(line).flatten(), expected, atol=1e-3, rtol=0)


def test_a_coordinate_that_never_varies_is_finite() -> None:
    spread = Spread(2)
    spread.fit(torch.stack((torch.rand(50), torch.zeros(50)), -1))
    assert spread(torch.rand(1, 5, 2)).isfinite().all()


def test_an_operator_keeps_its_standard_coordinates(tmp_path: Path) -> None:
    data = tiny.cloud(tmp_path / "data")
    content = tiny.content(data.path)
    content["data"]["coords"] = "standard"
    fit(Recipe.from_mapping(content), tmp_path / "run")
    operator = Operator.load(tmp_path / "run")
    scale, train = operator.normaliser, np.array(data.coords)[list(data.rows("train"))]
    np.testing.assert_allclose(scale.coord_mean, train.mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(scale.coord_std, train.std((0, 1)), rtol=1e-5)
    places = scale.place(Domain(torch.from_numpy(train))).coords
    assert torch.allclose(places.mean((0, 1)), torch.zeros(2), atol=1e-5)
    assert torch.allclose(places.std((0, 1)), torch.ones(2), atol=1e-2)
    # What is asked for in the box of the data is where it was.
    assert count_outside(operator, torch.from_numpy(train).flatten(0, 1)) == 0
    spread_out = scattered_points(operator, 2000).numpy()
    np.testing.assert_allclose(spread_out.min(0), train.min((0, 1)), rtol=0.02)
    np.testing.assert_allclose(spread_out.max(0), train.max((0, 1)), rtol=0.02)


def test_a_grid_whose_coordinates_are_standard_is_where_it_was(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    content = tiny.content(data.path)
    content["data"]["coords"] = "standard"
    fit(Recipe.from_mapping(content), tmp_path / "run")
    operator, inputs = Operator.load(tmp_path / "run"), np.array(data.inputs[:2])
    told = predict(operator, inputs, coords=np.array(data.coords)).values
    square = inputs.reshape(2, tiny.SIDE, tiny.SIDE)
    np.testing.assert_allclose(
        predict(operator, square).values.reshape(told.shape), told, rtol=1e-4
    )


def test_fourier_series_of_points_refuse_standard_coordinates(tmp_path: Path) -> None:
    data = tiny.cloud(tmp_path / "data")
    content = tiny.content(data.path)
    content["data"]["coords"] = "standard"
    content["model"] = {"name": "geo-fno", "width": 8, "layers": 1, "modes": [4, 3]}
    recipe = Recipe.from_mapping(content)
    with pytest.raises(RecipeError, match="geo-fno takes Fourier series of points between 0 and 1"):
        new_operator(recipe, cut(data, recipe).train)


def test_an_operator_keeps_its_spread_and_even_grids_refuse_it(tmp_path: Path) -> None:
    data = tiny.cloud(tmp_path / "data")
    content = tiny.content(data.path)
    content["data"]["coords"] = "spread"
    fit(Recipe.from_mapping(content), tmp_path / "run")
    operator = Operator.load(tmp_path / "run")
    assert operator.normaliser.spread is not None
    assert not torch.equal(operator.normaliser.spread.knots[0], torch.linspace(0, 1, 65))
    made = predict(operator, np.array(data.inputs[:2]), coords=np.array(data.coords[:2])).values
    assert np.isfinite(made).all()
    content["data"]["path"] = str(tiny.dataset(tmp_path / "grid").path)
    recipe = Recipe.from_mapping(content)
    with pytest.raises(DataError, match="even grid"):
        cut(tiny.dataset(tmp_path / "other"), recipe)
