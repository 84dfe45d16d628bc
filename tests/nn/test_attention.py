"""Every attention of the lower path against a direct dense formula, and its invariances."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ono.errors import UnsupportedDomain
from ono.nn.attention import (
    Attention,
    EfficientAttention,
    GalerkinAttention,
    LinearAttention,
    NystromAttention,
    SoftmaxAttention,
)
from ono.nn.measure import Measure
from ono.nn.pseudo_inverse import pseudo_inverse

WIDTH, HEADS, POINTS = 16, 4, 30
KINDS = ["efficient", "linear", "galerkin", "softmax", "nystrom", "nystrom+conv"]


def build(kind: str) -> Attention:
    torch.manual_seed(0)
    layer: Attention
    if kind.startswith("nystrom"):
        layer = NystromAttention(
            WIDTH, HEADS, landmarks=8, iterations=6, index_convolution="conv" in kind
        )
    else:
        kinds: dict[str, Callable[[int, int], Attention]] = {
            "efficient": EfficientAttention,
            "linear": LinearAttention,
            "galerkin": GalerkinAttention,
            "softmax": SoftmaxAttention,
        }
        layer = kinds[kind](WIDTH, HEADS)
    return layer.double()


def sample(batch: int = 3, points: int = POINTS) -> Tensor:
    return torch.randn(
        batch, points, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


def dense(layer: Attention, kind: str, x: Tensor, w: Tensor) -> Tensor:
    """One sample, head by head, as the papers write it; w sums to one."""
    q, k, v = layer.qkv(x).chunk(3, -1)
    share = WIDTH // HEADS
    heads = []
    for head in range(HEADS):
        part = slice(head * share, (head + 1) * share)
        qh, kh, vh = q[:, part], k[:, part], v[:, part]
        if kind == "efficient":
            weight = w[:, None] * kh.exp()
            heads.append(qh.softmax(-1) @ ((weight / weight.sum(0)).T @ vh) / math.sqrt(share))
        elif kind == "linear":
            phi = torch.nn.functional.elu
            similarity = (phi(qh) + 1) @ (phi(kh) + 1).T * w
            heads.append(similarity @ vh / similarity.sum(-1, keepdim=True))
        elif kind == "galerkin":
            assert isinstance(layer, GalerkinAttention)
            heads.append(qh @ (layer.norm_k(kh).T @ (w[:, None] * layer.norm_v(vh))))
        else:
            similarity = (qh @ kh.T / math.sqrt(share)).exp() * w
            heads.append(similarity / similarity.sum(-1, keepdim=True) @ vh)
    result: Tensor = layer.out(torch.cat(heads, -1))
    return result


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["efficient", "linear", "galerkin", "softmax"])
def test_matches_the_dense_formula(kind: str, weighted: bool) -> None:
    layer, x = build(kind), sample()
    w = torch.rand(3, POINTS, dtype=torch.float64) if weighted else torch.ones(3, POINTS).double()
    w = w / w.sum(-1, keepdim=True)
    out, _ = layer(x, Measure(w if weighted else None))
    expected = torch.stack([dense(layer, kind, x[i], w[i]) for i in range(3)])
    assert torch.allclose(out, expected, rtol=1e-10, atol=1e-12)


def test_nystrom_matches_explicit_maps() -> None:
    layer, x = build("nystrom"), sample(1)
    out, _ = layer(x, Measure())
    q, k, v = (layer.split(part).transpose(1, 2) for part in layer.qkv(x).chunk(3, -1))
    runs = [range(start, min(start + 4, POINTS)) for start in range(0, POINTS, 4)]
    q_mark, k_mark = (torch.stack([y[:, :, list(r)].mean(2) for r in runs], 2) for y in (q, k))
    scale = math.sqrt(WIDTH // HEADS)
    left, right = (q @ k_mark.mT / scale).softmax(-1), (q_mark @ k.mT / scale).softmax(-1)
    middle = pseudo_inverse((q_mark @ k_mark.mT / scale).softmax(-1), 6)
    expected = layer.out((left @ middle @ right @ v).transpose(1, 2).flatten(2))
    assert torch.allclose(out, expected, rtol=1e-9, atol=1e-11)


def test_nystrom_with_a_landmark_per_point_is_softmax_attention() -> None:
    nystrom = NystromAttention(WIDTH, HEADS, landmarks=10, iterations=30, index_convolution=False)
    full = SoftmaxAttention(WIDTH, HEADS)
    full.load_state_dict(nystrom.state_dict())
    x = 3 * sample(2, 10)
    out, _ = nystrom.double()(x, Measure())
    expected, _ = full.double()(x, Measure())
    assert torch.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_batch_mates_do_not_matter(kind: str) -> None:
    layer, x = build(kind), sample()
    alone, _ = layer(x[:1, :20], Measure())
    weights = torch.zeros(3, POINTS, dtype=torch.float64)
    weights[0, :20], weights[1:] = 1 / 20, 1 / POINTS
    padded = x.clone()
    padded[0, 20:] = 1e3
    together, _ = layer(padded, Measure(weights))
    assert torch.allclose(together[0, :20], alone[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["nystrom", "nystrom+conv"])
def test_without_padding_runs_are_known_beforehand(kind: str) -> None:
    layer, x = build(kind), sample()
    weights = torch.rand(3, POINTS, dtype=torch.float64)
    weights = weights / weights.sum(-1, keepdim=True)
    counted, _ = layer(x, Measure(weights))
    known, _ = layer(x, Measure(weights, padded=False))
    assert torch.allclose(known, counted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_order_dependence_is_as_declared(kind: str) -> None:
    layer, x = build(kind), sample()
    order = torch.randperm(POINTS, generator=torch.Generator().manual_seed(2))
    out, _ = layer(x, Measure())
    permuted, _ = layer(x[:, order], Measure())
    assert torch.allclose(permuted, out[:, order], rtol=1e-9) != layer.order_dependent


@pytest.mark.parametrize("kind", ["efficient", "linear", "galerkin", "softmax"])
def test_duplicated_points_change_nothing(kind: str) -> None:
    layer, x = build(kind), sample()
    out, _ = layer(x, Measure())
    twice, _ = layer(torch.cat((x, x), 1), Measure())
    assert torch.allclose(twice[:, :POINTS], out, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_reading_the_summary_is_attending(kind: str) -> None:
    layer, x = build(kind), sample()
    out, summary = layer(x, Measure())
    assert torch.allclose(layer.read(x[:, :7], summary), out[:, :7], rtol=1e-10)


def test_index_convolution_cannot_be_queried() -> None:
    layer, x = build("nystrom+conv"), sample()
    _, summary = layer(x, Measure())
    with pytest.raises(UnsupportedDomain, match=r"model\.lower\.index_convolution=false"):
        layer.read(x, summary)
