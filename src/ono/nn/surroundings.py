"""What lies around the nodes of a mesh, told to each of them as more channels.

Attention and point-wise networks never look at what is next to a point. Where an input jumps, as
the permeability of Darcy flow does, that is what decides.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

Shape: TypeAlias = tuple[int, ...]
Planes: TypeAlias = Float[Tensor, "batch channels *grid"]

_TAPS = 3


class Surroundings(nn.Module):
    """A small convolutional network on the nodes of a mesh, whose stencil has a fixed size.

    The stencil is as wide as three nodes of the mesh the network is made for. On another mesh
    values between the nodes are interpolated, so that a finer one sees the same surroundings.

    >>> around = Surroundings(1, 8, (5, 5))
    >>> around(torch.randn(2, 25, 1), (5, 5)).shape, around(torch.randn(2, 81, 1), (9, 9)).shape
    (torch.Size([2, 25, 8]), torch.Size([2, 81, 8]))
    """

    def __init__(self, in_channels: int, channels: int, shape: Shape, layers: int = 2) -> None:
        super().__init__()
        sizes = [in_channels, *[channels] * layers]
        self.stencils = nn.ModuleList(Stencil(a, b, shape) for a, b in pairwise(sizes))

    def forward(
        self, values: Float[Tensor, "batch points channels"], shape: Shape
    ) -> Float[Tensor, "batch points out"]:
        """Return what is around each node of a mesh of some shape."""
        planes = values.mT.unflatten(-1, shape)
        for number, stencil in enumerate(self.stencils):
            planes = stencil(F.gelu(planes) if number else planes)
        around: Tensor = planes.flatten(2).mT
        return around


class Stencil(nn.Module):
    """A convolution with three taps along every axis; over the border, its nodes go on."""

    def __init__(self, in_channels: int, out_channels: int, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kernel = _TAPS ** len(shape)
        self.taps = nn.Linear(kernel * in_channels, out_channels)

    def forward(self, planes: Planes) -> Float[Tensor, "batch out *grid"]:
        """Return the convolution on the mesh of the planes."""
        grid = tuple(planes.shape[2:])
        if grid != self.shape:
            for axis, (nodes, known) in enumerate(zip(grid, self.shape, strict=True), start=2):
                step = (nodes - 1) / max(known - 1, 1)
                sides = (_moved(planes, axis, -step), planes, _moved(planes, axis, step))
                planes = torch.cat(sides, 1)
            interpolated: Tensor = self.taps(planes.movedim(1, -1)).movedim(-1, 1)
            return interpolated
        dim = len(grid)
        padded = F.pad(planes, (1, 1) * dim, mode="replicate")
        # Channels vary fastest, then the taps along the first axis, as they are put together above.
        weight = self.taps.weight.unflatten(1, (*(_TAPS,) * dim, planes.shape[1])).movedim(-1, 1)
        order = (0, 1, *reversed(range(2, 2 + dim)))
        convolve = (F.conv1d, F.conv2d, F.conv3d)[dim - 1]
        found: Tensor = convolve(padded, weight.permute(order), self.taps.bias)
        return found


def _moved(planes: Planes, axis: int, step: float) -> Planes:
    """Return the planes at places so many nodes further along an axis, by linear interpolation."""
    nodes = planes.shape[axis]
    place = (torch.arange(nodes, device=planes.device, dtype=torch.float64) + step).clamp(
        0, nodes - 1
    )
    below = place.floor().long()
    above = (below + 1).clamp_max(nodes - 1)
    share = (place - below).to(planes.dtype).reshape(-1, *(1,) * (planes.ndim - axis - 1))
    return torch.lerp(planes.index_select(axis, below), planes.index_select(axis, above), share)
