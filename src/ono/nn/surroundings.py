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

from ono.domain import Domain
from ono.errors import UnsupportedDomain
from ono.problem import Problem

Shape: TypeAlias = tuple[int, ...]
Planes: TypeAlias = Float[Tensor, "batch channels *grid"]

_TAPS = 3
_LAYERS = 2


class Surroundings(nn.Module):
    """A small convolutional network on the nodes of a mesh, whose stencil has a fixed size.

    The stencil is as wide as three nodes of the mesh the network is made for. On another mesh
    values between the nodes are interpolated, so that a finer one sees the same surroundings. Of a
    curvilinear mesh the places of the nodes are seen too.

    >>> around = Surroundings(Problem.grid((5, 5), in_channels=1, out_channels=1), 8)
    >>> around(Domain.grid((9, 9), batch=2), torch.randn(2, 81, 1)).shape
    torch.Size([2, 81, 8])
    """

    def __init__(self, problem: Problem, channels: int) -> None:
        super().__init__()
        if problem.shape is None:
            raise UnsupportedDomain(
                "model.surroundings needs a grid or a structured mesh, got scattered points, which "
                "have no neighbours; set it to 0"
            )
        self.with_places = problem.kind == "structured"
        seen = problem.in_channels + (problem.dim if self.with_places else 0)
        if not seen:
            raise UnsupportedDomain(
                "model.surroundings has nothing to tell of a grid without input channels; set it "
                "to 0"
            )
        sizes = pairwise([seen, *[channels] * _LAYERS])
        self.stencils = nn.ModuleList(Stencil(a, b, problem.shape) for a, b in sizes)

    def forward(
        self, domain: Domain, values: Float[Tensor, "batch points channels"]
    ) -> Float[Tensor, "batch points out"]:
        """Return what is around each node."""
        if domain.shape is None:
            raise UnsupportedDomain(
                "a model with surroundings needs all nodes of a grid or a structured mesh as its "
                "input, got scattered points; queries may lie anywhere"
            )
        seen = torch.cat((domain.coords, values), -1) if self.with_places else values
        planes = seen.mT.unflatten(-1, domain.shape)
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
