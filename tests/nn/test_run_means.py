"""Means over runs of points and their gradient."""

from __future__ import annotations

import pytest
import torch

from ono.nn.run_means import run_means


@pytest.mark.parametrize(("points", "run"), [(12, 4), (13, 4), (15, 4), (3, 5), (4, 1)])
def test_every_run_has_its_mean(points: int, run: int) -> None:
    x = torch.randn(2, 3, points, 5, dtype=torch.float64, requires_grad=True)
    means = run_means(x, run)
    expected = torch.stack([part.mean(-2) for part in x.split(run, -2)], -2)
    assert torch.allclose(means, expected, rtol=1e-14, atol=1e-15)
    assert torch.autograd.gradcheck(lambda y: run_means(y, run), (x,))


def test_views_are_taken_as_they_are() -> None:
    points = torch.randn(2, 13, 3 * 4, dtype=torch.float64)
    heads = points.unflatten(-1, (3, 4)).transpose(1, 2)
    assert torch.equal(run_means(heads, 5), run_means(heads.contiguous(), 5))
