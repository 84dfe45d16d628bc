"""Galerkin attention with coordinates against the dense formula."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ono.errors import RecipeError
from ono.nn.galerkin_attention import CoordinateGalerkinAttention, HeadNorm
from ono.nn.measure import Measure
from ono.nn.mlp import EndLinear


def case(eps: float | None = 1e-5) -> tuple[CoordinateGalerkinAttention, Tensor, Tensor]:
    torch.manual_seed(0)
    attention = CoordinateGalerkinAttention(12, heads=3, dim=2, eps=eps).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return attention, torch.randn(2, 20, 12).double(), torch.rand(2, 20, 2).double()


def dense(
    attention: CoordinateGalerkinAttention, x: Tensor, coords: Tensor, weights: Tensor
) -> Tensor:
    """Return ([q p] [k p]ᵀ) W [v p] with the full matrix between points, head by head."""
    parts = []
    for head in range(3):
        own = slice(4 * head, 4 * head + 4)
        sides = []
        for projection, norm in (
            (attention.query, None),
            (attention.key, attention.norm_k),
            (attention.value, attention.norm_v),
        ):
            channels = x @ projection.weight[own].mT + projection.bias[own]
            if isinstance(norm, HeadNorm):
                channels = F.layer_norm(channels, (4,), norm.weight[own], norm.bias[own], norm.eps)
            sides.append(torch.cat((coords, channels), -1))
        q, k, v = sides
        parts.append((q @ k.mT) @ (weights[..., None] * v))
    result: Tensor = attention.out(torch.cat(parts, -1))
    return result


@pytest.mark.parametrize("eps", [None, 1e-7])
def test_it_is_the_dense_product_over_the_number_of_points(eps: float | None) -> None:
    attention, x, coords = case(eps)
    uniform = torch.full((2, 20), 1 / 20).double()
    torch.testing.assert_close(
        attention(x, coords, Measure())[0], dense(attention, x, coords, uniform)
    )


def test_the_measure_weighs_the_sum_over_points() -> None:
    attention, x, coords = case()
    weights = torch.rand(2, 20).double().softmax(-1)
    attended, context = attention(x, coords, Measure(weights))
    torch.testing.assert_close(attended, dense(attention, x, coords, weights))
    torch.testing.assert_close(attention.read(x[:, :5], coords[:, :5], context), attended[:, :5])


def test_projections_start_near_a_hundredth_of_the_identity() -> None:
    torch.manual_seed(0)
    attention = CoordinateGalerkinAttention(64, heads=4, dim=2, eps=1e-5)
    for projection in (attention.query, attention.key, attention.value):
        rest = projection.weight.detach() - 0.01 * torch.eye(64)
        assert float(rest.abs().max()) < 0.01 * math.sqrt(6 / 128) * 1.001
        assert float(rest.std()) > 0.004 * math.sqrt(6 / 128)
        assert not projection.bias.any()


def test_heads_must_share_the_width() -> None:
    with pytest.raises(RecipeError, match="got 10 and 4"):
        CoordinateGalerkinAttention(10, heads=4, dim=2, eps=None)


def test_bfloat16_does_not_round_places_in_a_query() -> None:
    """Only coordinates are told: what is read from the context has their digits."""
    attention = CoordinateGalerkinAttention(8, heads=2, dim=2, eps=None)
    attention.out = EndLinear(12, 8)
    x, coords = torch.zeros(1, 20, 8), torch.rand(1, 20, 2)
    context = torch.randn(1, 12, 12)
    with torch.autocast("cpu", torch.bfloat16):
        told = attention.read(x, coords, context)
    torch.testing.assert_close(told, attention.read(x, coords, context), rtol=1e-5, atol=1e-6)
