"""The U-Net path of U-FNO (Wen et al., 2022): local features at three coarser scales."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_INSTANCE_NORM = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}

Norm = Literal["batch", "instance"]
DEPTH = 3


class UNetPath(nn.Module):
    """Three halvings, three doublings with skips; every scale has the same width.

    The grid is filled up with zeros to a multiple of 8 nodes and cut back, so the Fourier path
    beside it keeps its period.

    >>> UNetPath(4, axes=2)(torch.randn(2, 4, 17, 9)).shape
    torch.Size([2, 4, 17, 9])
    """

    def __init__(self, width: int, axes: int, norm: Norm = "batch") -> None:
        super().__init__()
        self.down1 = _halve(width, axes, norm)
        self.down2 = nn.Sequential(_halve(width, axes, norm), _conv(width, axes, norm, stride=1))
        self.down3 = nn.Sequential(_halve(width, axes, norm), _conv(width, axes, norm, stride=1))
        self.up2 = _up(width, width, axes)
        self.up1 = _up(2 * width, width, axes)
        self.up0 = _up(2 * width, width, axes)
        self.out = _CONV[axes](2 * width, width, 3, padding=1)

    def forward(self, v: Float[Tensor, "batch width *grid"]) -> Float[Tensor, "batch width *grid"]:
        """Apply the path on a grid of any size."""
        grid = v.shape[2:]
        margins = [-n % 2**DEPTH for n in grid]
        v = nn.functional.pad(v, [n for margin in reversed(margins) for n in (0, margin)])
        half = self.down1(v)
        quarter = self.down2(half)
        eighth = self.down3(quarter)
        back = torch.cat((quarter, self.up2(eighth)), 1)
        back = torch.cat((half, self.up1(back)), 1)
        local: Tensor = self.out(torch.cat((v, self.up0(back)), 1))
        for axis, nodes in enumerate(grid, 2):
            local = local.narrow(axis, 0, nodes)
        return local


def _halve(width: int, axes: int, norm: Norm) -> nn.Sequential:
    return _conv(width, axes, norm, stride=2)


def _conv(width: int, axes: int, norm: Norm, *, stride: int) -> nn.Sequential:
    kinds = _BATCH_NORM if norm == "batch" else _INSTANCE_NORM
    return nn.Sequential(
        _CONV[axes](width, width, 3, stride=stride, padding=1, bias=False),
        kinds[axes](width, affine=True),
        nn.LeakyReLU(0.1),
    )


def _up(width: int, out: int, axes: int) -> nn.Sequential:
    double = _TRANSPOSED[axes](width, out, kernel_size=4, stride=2, padding=1)
    return nn.Sequential(double, nn.LeakyReLU(0.1))
