"""Errors of fields, whatever their size."""

from __future__ import annotations

import pytest
import torch

from ono.evaluate.metrics import (
    channel_errors,
    frame_errors,
    frame_norms,
    gradient_relative_l2,
    relative_l2,
)
from ono.evaluate.score import Score


@pytest.mark.parametrize("scale", [1e-36, 1e-22, 1.0, 1e19, 1e36])
def test_the_unit_of_a_field_does_not_matter(scale: float) -> None:
    torch.manual_seed(0)
    true = torch.rand(3, 2, 49, 2) + 0.5
    pred = true + 0.1 * torch.randn_like(true)
    shape = (7, 7)

    def errors(factor: float) -> list[torch.Tensor]:
        ours, theirs = pred * factor, true * factor
        return [
            relative_l2(ours, theirs),
            channel_errors(ours, theirs),
            frame_errors(ours, theirs),
            gradient_relative_l2(ours[:, 0], theirs[:, 0], shape),
        ]

    for scaled, plain in zip(errors(scale), errors(1.0), strict=True):
        torch.testing.assert_close(scaled, plain, rtol=1e-4, atol=0)


def test_small_fields_have_a_finite_gradient() -> None:
    true = 1e-30 * torch.rand(2, 9, 1)
    pred = (true * 1.1).requires_grad_()
    relative_l2(pred, true).sum().backward()
    assert pred.grad is not None
    assert torch.isfinite(pred.grad).all()
    assert (pred.grad != 0).all()


def test_frames_together_have_one_norm() -> None:
    true = torch.tensor([1.0, 2.0, 10.0]).reshape(1, 3, 1, 1).expand(2, 3, 5, 1)
    pred = true + torch.tensor([0.5, 0.0, 1.0]).reshape(1, 3, 1, 1)
    found = Score(
        relative_l2(pred, true),
        channel_errors(pred, true),
        torch.arange(2),
        frame_errors(pred, true),
        frame_norms(true),
    )
    assert found.mean_over(slice(None)) == pytest.approx(float(relative_l2(pred, true).mean()))
    assert found.mean_over(slice(2, None)) == pytest.approx(0.1)
