"""The loss of a step as kernels."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE, KERNELS

from ono.evaluate.metrics import relative_l2
from ono.train.relative_error import quick_relative_l2

pytestmark = KERNELS


@pytest.mark.parametrize("shape", [(3, 7, 1), (2, 5000, 2), (2, 3, 1500, 4)])
def test_error_and_gradient_are_those_of_the_metric(shape: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(len(shape))
    pred, true = torch.randn(2, *shape, generator=draw).to(DEVICE)
    slopes = torch.rand(shape[0], generator=draw).to(DEVICE)
    found = []
    for error in (quick_relative_l2, relative_l2):
        ours = pred.clone().requires_grad_()
        errors = error(ours, true)
        errors.backward(slopes)
        found.append((errors.detach(), ours.grad))
    assert torch.allclose(found[0][0], found[1][0], rtol=1e-6)
    assert found[0][1] is not None
    assert found[1][1] is not None
    assert torch.allclose(found[0][1], found[1][1], rtol=1e-5, atol=1e-9)


def test_what_is_right_gives_no_gradient() -> None:
    true = torch.ones(2, 9, 1, device=DEVICE)
    pred = true.clone().requires_grad_()
    quick_relative_l2(pred, true).sum().backward()
    assert pred.grad is not None
    assert not pred.grad.any()


def test_masked_points_are_left_to_torch() -> None:
    mask = torch.arange(9, device=DEVICE).expand(2, 9) < 6
    pred, true = torch.rand(2, 2, 9, 1, device=DEVICE)
    assert torch.equal(quick_relative_l2(pred, true, mask), relative_l2(pred, true, mask))
