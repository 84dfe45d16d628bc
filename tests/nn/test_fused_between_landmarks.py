"""The kernels of what landmarks tell against the operations of torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernel_cases import DEVICE, EXACT, KERNELS, ON_GPU
from torch import Tensor

import ono.nn.between_landmarks as by_torch
from ono.nn import fused_between_landmarks as fused
from ono.nn.between_landmarks import between_landmarks
from ono.nn.fused_between_landmarks import can_tell, fused_between_landmarks

pytestmark = KERNELS

Answer = Callable[[Tensor, Tensor, Tensor, Tensor | None, int], Tensor]

on_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:
        monkeypatch.setattr(fused, "ambient_precision", lambda device: "ieee")


def landmarks(size: int, share: int = 16, heads: int = 3) -> list[Tensor]:
    """Return queries, keys, what was seen, and the slope of what is told."""
    draw = torch.Generator().manual_seed(size)
    return list((1.5 * torch.randn(4, 2, heads, size, share, generator=draw)).to(DEVICE))


def first(counts: list[int], size: int) -> Tensor:
    return torch.arange(size, device=DEVICE) < torch.tensor(counts, device=DEVICE)[:, None]


def found(answer: Answer, given: list[Tensor], used: Tensor | None = None) -> list[Tensor]:
    """Return what is told, and the gradients of queries, keys and what was seen."""
    *inputs, slope = given
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    told = answer(*inputs, used, 6)  # type: ignore[call-arg, arg-type]
    gradients = torch.autograd.grad(told, inputs, slope.to(told.dtype))
    return [told.detach(), *gradients]


def error(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("share", [16, 32])
@pytest.mark.parametrize("size", [5, 16, 24, 64])
def test_answers_and_gradients_are_those_of_torch(size: int, share: int) -> None:
    given = landmarks(size, share)
    exact = found(between_landmarks, [x.double() for x in given])
    for one, other in zip(found(fused_between_landmarks, given), exact, strict=True):
        assert error(one, other) < 5e-6


@pytest.mark.parametrize("counts", [[13, 20], [4, 16]])
def test_landmarks_that_are_not_used_tell_nothing(counts: list[int]) -> None:
    given, used = landmarks(20), first(counts, 20)
    exact = found(between_landmarks, [x.double() for x in given], used)
    for one, other in zip(found(fused_between_landmarks, given, used), exact, strict=True):
        assert error(one, other) < 5e-6
        assert not (one * ~used[:, None, :, None]).any()
    cut = [x[:1, :, : counts[0]] for x in given]
    for one, other in zip(found(fused_between_landmarks, cut), exact, strict=True):
        assert error(one, other[:1, :, : counts[0]]) < 5e-6


def test_no_sample_depends_on_the_others() -> None:
    given = landmarks(6)
    together = found(fused_between_landmarks, given)
    alone = found(fused_between_landmarks, [x[:1] for x in given])
    for one, both in zip(alone, together, strict=True):
        assert torch.equal(one, both[:1])


def test_torch_is_told_the_shapes() -> None:
    q, k, seen, _ = landmarks(6)
    counts = torch.tensor([6, 3], dtype=torch.int32, device=DEVICE)
    of_both = ("test_schema", "test_faketensor")
    for keep in (True, False):
        torch.library.opcheck(fused.told, (q, k, seen, counts, 3, keep, EXACT), test_utils=of_both)
    _, shares, kept = fused.told(q, k, seen, None, 3, True, EXACT)
    told = (seen, q, k, seen, None, shares, kept, EXACT)
    torch.library.opcheck(fused.told_backward, told, test_utils=of_both)


@on_gpu
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_kernels_are_as_exact_as_torch(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = landmarks(64, heads=8)
    exact = found(between_landmarks, [x.double() for x in given])
    assert can_tell(given[0])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        ours = found(between_landmarks, given)
        monkeypatch.setattr(by_torch, "can_tell", lambda q: False)
        theirs = found(between_landmarks, given)
    finally:
        torch.set_float32_matmul_precision(before)
    for one, other, best in zip(ours, theirs, exact, strict=True):
        assert error(one, best) < 2 * error(other, best) + 1e-6


@on_gpu
def test_a_graph_replays_them() -> None:
    given = landmarks(30)
    place = [torch.randn_like(x) for x in given]
    expected = found(between_landmarks, given)
    found(between_landmarks, place)  # compiled before it is recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = found(between_landmarks, place)
    for there, x in zip(place, given, strict=True):
        there.copy_(x)
    graph.replay()
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


@on_gpu
def test_what_is_too_large_or_too_long_is_left_to_torch() -> None:
    assert not can_tell(torch.zeros(1, 1, 65, 16, device=DEVICE))
    assert not can_tell(torch.zeros(1, 1, 5, 16, device=DEVICE, dtype=torch.float64))
