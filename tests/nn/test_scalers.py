"""The scalers of the Galerkin Transformer: sizes, and what interpolation keeps."""

from __future__ import annotations

import pytest
import torch

from ono.domain import Domain
from ono.nn.scalers import DownScaler, UpScaler, resize


def test_resizing_keeps_linear_functions() -> None:
    fine, coarse = Domain.grid((17, 9)), Domain.grid((6, 5))
    field = fine.coords.mT.unflatten(-1, (17, 9))
    torch.testing.assert_close(resize(field, (6, 5)).flatten(2).mT, coarse.coords)


@pytest.mark.parametrize("fine", [(20,), (13, 30), (7, 8, 9)])
def test_any_grid_of_up_to_three_axes(fine: tuple[int, ...]) -> None:
    down, up = DownScaler(2, 8, len(fine), dropout=0.0), UpScaler(8, len(fine))
    coarse = tuple(n // 2 for n in fine)
    features = down(torch.randn(3, 2, *fine), coarse)
    assert features.shape == (3, 8, *coarse)
    assert up(features, fine).shape == (3, 8, *fine)


def test_features_are_those_of_one_two_and_three_convolutions() -> None:
    torch.manual_seed(0)
    down = DownScaler(1, 8, 2, dropout=0.0)
    x = torch.randn(2, 1, 16, 16)
    features = down(x, (4, 4))
    first, second, third, fourth = down.convolutions
    hidden = resize(first(x).relu(), (8, 8))
    one = second(hidden).relu()
    two = third(one).relu()
    expected = torch.cat((one, two, fourth(two).relu()), 1)
    torch.testing.assert_close(features, resize(expected, (4, 4)))
