"""Carry features from a fine grid to a coarse one and back, by convolutions and interpolation.

Both go through a grid of the geometric mean of the two sizes. Sizes are given in the call, so the
same weights serve any grid.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ono.nn.measure import at_least_float32

Shape: TypeAlias = tuple[int, ...]

_CONV: dict[int, type[nn.Conv1d] | type[nn.Conv2d] | type[nn.Conv3d]] = {
    1: nn.Conv1d,
    2: nn.Conv2d,
    3: nn.Conv3d,
}
_MODE = {1: "linear", 2: "bilinear", 3: "trilinear"}


class DownScaler(nn.Module):
    """Lift a function on a fine grid to features on a coarse one.

    The features are those after one, two and three convolutions on the middle grid, side by side.

    >>> down = DownScaler(1, 16, dim=2, dropout=0.0)
    >>> down(torch.randn(3, 1, 21, 17), (11, 9)).shape
    torch.Size([3, 16, 11, 9])
    """

    def __init__(self, in_channels: int, width: int, dim: int, dropout: float) -> None:
        super().__init__()
        third = width // 3
        conv = _CONV[dim]
        steps = ((in_channels, width), (width, third), (third, third), (third, width - 2 * third))
        self.convolutions = nn.ModuleList(
            conv(before, after, 3, padding=1, bias=False) for before, after in steps
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch channels *grid"], coarse: Shape
    ) -> Float[Tensor, "batch width *coarse"]:
        """Return the features at the nodes of the coarse grid."""
        first, *others = self.convolutions
        middle = between(tuple(x.shape[2:]), coarse)
        x = at_least_float32(x)
        with torch.autocast(x.device.type, enabled=False):  # values keep their digits
            x = first(x)
        x = resize(self.dropout(x).relu(), middle)
        parts = []
        for convolution in others:
            x = self.dropout(convolution(x)).relu()
            parts.append(x)
        return resize(torch.cat(parts, 1), coarse)


class UpScaler(nn.Module):
    """Carry features on a coarse grid to a fine one.

    >>> UpScaler(16, dim=2)(torch.randn(3, 16, 11, 9), (21, 17)).shape
    torch.Size([3, 16, 21, 17])
    """

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.convolution = _CONV[dim](width, width, 3, padding=1, bias=False)

    def forward(
        self, x: Float[Tensor, "batch width *coarse"], fine: Shape
    ) -> Float[Tensor, "batch width *grid"]:
        """Return the features at the nodes of the fine grid."""
        x = self.convolution(resize(x, between(fine, tuple(x.shape[2:]))))
        return resize(F.silu(F.silu(x)), fine)  # twice, as published


def resize(
    x: Float[Tensor, "batch channels *grid"], shape: Shape
) -> Float[Tensor, "batch channels *other"]:
    """Interpolate linearly to another number of nodes; the corners stay where they are.

    >>> resize(torch.tensor([[[0.0, 2.0, 4.0]]]), (5,)).flatten().tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    return F.interpolate(x, size=shape, mode=_MODE[len(shape)], align_corners=True)


def between(fine: Shape, coarse: Shape) -> Shape:
    """Return the sizes halfway between two grids.

    >>> between((85, 85), (43, 43))
    (60, 60)
    """
    return tuple(round(math.sqrt(n * m)) for n, m in zip(fine, coarse, strict=True))
