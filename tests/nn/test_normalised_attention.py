"""GNOT's attention against the dense, row-normalised formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ono.errors import RecipeError
from ono.nn.measure import Measure
from ono.nn.normalised_attention import NormalisedAttention


def dense(
    attention: NormalisedAttention, x: Tensor, sources: list[Tensor], weights: list[Tensor]
) -> Tensor:
    """Return q̃ + Σ_l A_l v_l, with A_l the full matrix whose rows are made to sum to one."""

    def heads(y: Tensor) -> Tensor:
        split: Tensor = y.unflatten(-1, (attention.heads, -1)).transpose(1, 2)
        return split

    q = heads(attention.query(x)).softmax(-1)
    mixed = q
    for key, value, y, w in zip(attention.keys, attention.values, sources, weights, strict=True):
        rows = q @ heads(key(y)).softmax(-1).mT * w[:, None, None]
        mixed = mixed + rows / rows.sum(-1, keepdim=True) @ heads(value(y))
    result: Tensor = attention.out(mixed.transpose(1, 2).flatten(-2))
    return result


def case(heads: int) -> tuple[NormalisedAttention, Tensor, list[Tensor]]:
    torch.manual_seed(heads)
    attention = NormalisedAttention(12, heads, sources=2).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return (
        attention,
        torch.randn(2, 9, 12).double(),
        [torch.randn(2, n, 12).double() for n in (5, 7)],
    )


@pytest.mark.parametrize("heads", [1, 3])
def test_it_is_the_dense_row_normalised_attention(heads: int) -> None:
    attention, x, sources = case(heads)
    ones = [torch.ones(y.shape[:2]).double() for y in sources]
    fast = attention(x, sources, [Measure(), Measure()])
    torch.testing.assert_close(fast, dense(attention, x, sources, ones))


def test_each_source_has_its_own_measure() -> None:
    attention, x, sources = case(3)
    weights = [torch.rand(y.shape[:2]).double().softmax(-1) for y in sources]
    fast = attention(x, sources, [Measure(w) for w in weights])
    torch.testing.assert_close(fast, dense(attention, x, sources, weights))


def test_points_without_weight_are_not_attended() -> None:
    attention, x, sources = case(3)
    weights = torch.tensor([[0.5, 0.5, 0, 0, 0]]).double().expand(2, -1)
    sources[0][:, 2:] = 1e3
    padded = attention(x, sources, [Measure(weights), Measure()])
    cut = attention(x, [sources[0][:, :2], sources[1]], [Measure(), Measure()])
    torch.testing.assert_close(padded, cut)


def test_heads_must_share_the_width() -> None:
    with pytest.raises(RecipeError, match="got 10 and 4"):
        NormalisedAttention(10, heads=4)
