"""The U-Net path of U-FNO."""

from __future__ import annotations

import pytest
import torch

from ono.nn.unet_path import Norm, UNetPath


@pytest.mark.parametrize(
    ("width", "axes", "count"), [(20, 2, 57_480), (32, 2, 146_880), (32, 3, 521_664)]
)
@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_path_has_the_published_size(norm: Norm, width: int, axes: int, count: int) -> None:
    with torch.device("meta"):
        path = UNetPath(width, axes, norm)
    assert sum(p.numel() for p in path.parameters()) == count


@pytest.mark.parametrize("grid", [(16,), (5, 17), (24, 16), (3, 9, 8)])
def test_any_grid_keeps_its_size(grid: tuple[int, ...]) -> None:
    path = UNetPath(4, len(grid)).eval()
    assert path(torch.randn(2, 4, *grid)).shape == (2, 4, *grid)


def test_instance_norm_keeps_samples_apart_in_training() -> None:
    path, v = UNetPath(4, 2, "instance"), torch.randn(3, 4, 16, 24)
    torch.testing.assert_close(path(v)[:1], path(v[:1]))


def test_path_sees_no_further_than_its_convolutions() -> None:
    path = UNetPath(4, 1).double().eval()
    v = torch.randn(1, 4, 160, dtype=torch.float64, requires_grad=True)
    path(v)[..., 80].sum().backward()
    assert v.grad is not None
    reached = v.grad.abs().sum((0, 1)).nonzero().flatten()
    assert 24 < int(reached.max() - reached.min()) < 80
