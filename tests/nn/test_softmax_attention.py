from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ono.device import quick_products
from ono.nn.softmax_attention import quickest, small_tiles, softmax_attention


def both_ways(
    queries: int, bias: Tensor | None, draw: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Return output and gradients of ours and of torch's."""
    inputs = [torch.randn(2, 3, n, 4, generator=draw) for n in (queries, 50, 50)]
    q, k, v = (x.requires_grad_() for x in inputs)
    given = torch.randn(2, 3, queries, 4, generator=draw)
    ours = softmax_attention(q, k, v, bias)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return (
        [ours, *torch.autograd.grad(ours, (q, k, v), given)],
        [theirs, *torch.autograd.grad(theirs, (q, k, v), given)],
    )


@pytest.mark.parametrize("queries", [40, 800])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_it_is_torchs_attention_whoever_makes_its_products(
    queries: int, weighted: bool, precision: str
) -> None:
    draw = torch.Generator().manual_seed(0)
    bias = torch.randn(2, 1, 1, 50, generator=draw) if weighted else None
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        ours, theirs = both_ways(queries, bias, draw)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    for mine, expected in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, expected, rtol=1e-2, atol=1e-2)  # "medium" may round to bf16


def test_small_tiles_have_all_digits_where_others_may_be_rounded() -> None:
    draw = torch.Generator().manual_seed(0)
    torch.set_float32_matmul_precision("medium")
    try:
        ours, _ = both_ways(40, None, draw)
    finally:
        torch.set_float32_matmul_precision("highest")
    _, exact = both_ways(40, None, torch.Generator().manual_seed(0))
    for mine, expected in zip(ours, exact, strict=True):
        assert torch.equal(mine, expected)


def test_evaluation_keeps_no_history() -> None:
    q = torch.randn(1, 1, 8, 4, requires_grad=True)
    with torch.no_grad(), quick_products("cpu"):
        assert not softmax_attention(q, q, q, None).requires_grad


def test_torch_is_told_the_shapes() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 4, generator=draw).requires_grad_() for n in (40, 50, 50))
    bias = torch.randn(2, 1, 1, 50, generator=draw)
    for told in (None, bias):
        torch.library.opcheck(small_tiles, (q, k, v, told))


def long_ones(points: int, dtype: torch.dtype, device: str) -> tuple[list[Tensor], Tensor]:
    """Return queries, keys, values, the slope behind them, and logarithms of uneven weights."""
    draw = torch.Generator().manual_seed(0)
    drawn = torch.randn(4, 2, 3, points, 16, generator=draw).to(device, dtype)
    weights = torch.rand(2, points, generator=draw).pow(4)
    weights[0, points // 2 :] = 0
    return list(drawn), weights.log()[:, None, None].to(device)


def found(answer: Callable[..., Tensor], given: list[Tensor], bias: Tensor | None) -> list[Tensor]:
    """Return what an attention answers, and its gradients."""
    *inputs, slope = given
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    mixed = answer(*inputs, bias)
    return [mixed.detach(), *torch.autograd.grad(mixed, inputs, slope)]


def by_torch(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    rounded = None if bias is None else bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=rounded)


@pytest.mark.parametrize("weighted", [False, True])
def test_two_channels_are_as_good_as_a_bias(weighted: bool) -> None:
    given, bias = long_ones(300, torch.float32, "cpu")
    asked = bias if weighted else None
    exact = found(by_torch, [x.double() for x in given], asked)
    for mine, expected in zip(found(quickest, given, asked), exact, strict=True):
        assert (mine - expected).norm() < 2e-6 * expected.norm()


def test_and_better_than_a_rounded_one() -> None:
    given, bias = long_ones(300, torch.bfloat16, "cpu")
    exact = found(by_torch, [x.double() for x in given], bias)
    ours, theirs = found(quickest, given, bias), found(by_torch, given, bias)
    for mine, other, expected in zip(ours, theirs, exact, strict=True):
        assert (mine - expected).norm() < (other - expected).norm()
        assert (mine - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("weighted", [False, True])
def test_long_ones_are_quick_and_right_on_a_gpu(weighted: bool) -> None:
    given, bias = long_ones(5000, torch.bfloat16, "cuda")
    asked = bias if weighted else None
    exact = found(by_torch, [x.double() for x in given], asked)
    with torch.profiler.profile() as seen:
        ours = found(softmax_attention, given, asked)
    for mine, expected in zip(ours, exact, strict=True):
        assert (mine - expected).norm() < 1e-2 * expected.norm()
    assert not any("math" in event.name or "efficient" in event.name for event in seen.events())
