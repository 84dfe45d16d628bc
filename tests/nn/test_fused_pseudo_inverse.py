"""The kernels of the pseudo-inverse against the operations of torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from kernel_cases import DEVICE, KERNELS, ON_GPU
from torch import Tensor

import ono.nn.pseudo_inverse as by_torch
from ono.nn import fused_pseudo_inverse as fused
from ono.nn.fused_pseudo_inverse import can_invert, fused_pseudo_inverse
from ono.nn.pseudo_inverse import pseudo_inverse

pytestmark = KERNELS

on_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:
        monkeypatch.setattr(fused, "ambient_precision", lambda device: "ieee")


def shares(logits: Tensor) -> Tensor:
    between: Tensor = (2 * logits).softmax(-1)
    return between


def well_conditioned(entries: Tensor) -> Tensor:
    size = entries.shape[-1]
    return entries / (4 * math.sqrt(size)) + torch.eye(size).to(entries)


def found(
    invert: Callable[[Tensor, int], Tensor], start: Tensor, slope: Tensor, iterations: int = 6
) -> tuple[Tensor, Tensor]:
    """Return the inverses of what `start` leads to, and its gradient."""
    start = start.detach().clone().requires_grad_()
    inverse = invert(start, iterations)
    (gradient,) = torch.autograd.grad(inverse, start, slope.to(inverse))
    return inverse.detach(), gradient


def error(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("size", [5, 16, 24, 64])
@pytest.mark.parametrize("made", [shares, well_conditioned])
def test_inverse_and_gradient_are_those_of_torch(
    made: Callable[[Tensor], Tensor], size: int
) -> None:
    draw = torch.Generator().manual_seed(size)
    start, slope = torch.randn(2, 3, size, size, generator=draw).to(DEVICE)
    ours = found(lambda x, n: fused_pseudo_inverse(made(x).mT, n).mT, start, slope)
    exact = found(lambda x, n: pseudo_inverse(made(x).mT, n).mT, start.double(), slope)
    for one, other in zip(ours, exact, strict=True):
        assert error(one, other) < 3e-6


def test_equal_sums_share_the_gradient() -> None:
    """After few iterations: later it matters little from where they went."""
    rows = [torch.tensor([2.0, -1.0, 0.0, 0.5, 0.0]).roll(by) for by in range(5)]
    matrix, slope = torch.stack(rows)[None].to(DEVICE), torch.rand(1, 5, 5, device=DEVICE)
    ours = found(fused_pseudo_inverse, matrix, slope, 2)
    exact = found(pseudo_inverse, matrix.double(), slope, 2)
    assert error(ours[1], exact[1]) < 3e-6


def test_no_matrix_depends_on_the_others() -> None:
    matrices = shares(torch.randn(2, 6, 6, device=DEVICE))
    slope = torch.randn_like(matrices)
    scale = torch.tensor([1.0, 1e3], device=DEVICE)[:, None, None]
    alone = found(fused_pseudo_inverse, matrices[:1], slope[:1])
    together = found(fused_pseudo_inverse, scale * matrices, slope)
    for one, both in zip(alone, together, strict=True):
        assert torch.equal(one, both[:1])


def test_torch_is_told_the_shapes() -> None:
    matrices = shares(torch.randn(2, 6, 6, device=DEVICE))
    of_both = ("test_schema", "test_faketensor")
    for keep in (True, False):
        torch.library.opcheck(fused.inverted, (matrices, 3, keep), test_utils=of_both)
    told = (matrices, matrices, matrices.expand(3, 2, 6, 6).contiguous())
    torch.library.opcheck(fused.inverted_backward, told, test_utils=of_both)


@on_gpu
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_kernels_are_as_exact_as_torch(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, slope = torch.randn(2, 16, 64, 64, device=DEVICE)
    exact = found(lambda x, n: pseudo_inverse(shares(x), n), start.double(), slope)
    assert can_invert(start)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        ours = found(lambda x, n: pseudo_inverse(shares(x), n), start, slope)
        monkeypatch.setattr(by_torch, "can_invert", lambda matrices: False)
        theirs = found(lambda x, n: pseudo_inverse(shares(x), n), start, slope)
    finally:
        torch.set_float32_matmul_precision(before)
    for one, other, best in zip(ours, theirs, exact, strict=True):
        assert error(one, best) < 2 * error(other, best)


@on_gpu
def test_a_graph_replays_them() -> None:
    matrices = shares(torch.randn(2, 4, 30, 30, device=DEVICE))
    slope, place = torch.randn_like(matrices), matrices.mT.contiguous()
    expected = found(pseudo_inverse, matrices, slope)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = found(pseudo_inverse, place, slope)
    place.copy_(matrices)
    graph.replay()
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


@on_gpu
def test_what_is_too_large_or_too_long_is_left_to_torch() -> None:
    assert not can_invert(torch.zeros(1, 65, 65, device=DEVICE))
    assert not can_invert(torch.zeros(1, 5, 5, device=DEVICE, dtype=torch.float64))
