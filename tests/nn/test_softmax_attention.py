from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ono.device import quick_products
from ono.nn.softmax_attention import small_tiles, softmax_attention


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
