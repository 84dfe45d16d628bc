"""The U-Net of LSM: a neural spectral block on each of its scales."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ono.nn.neural_spectral_block import NeuralSpectralBlock

Norm = Literal["batch", "instance"]

CONVOLUTION = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORM: dict[Norm, dict[int, Callable[..., nn.Module]]] = {
    "batch": {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d},
    "instance": {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d},
}
POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


class LatentSpectralUNet(nn.Module):
    """Halve a grid scale by scale, transform each scale in patches, put them together again.

    Channels double from scale to scale except at the last. The same patches serve all scales:
    the grid is cut into 2^(scales - 1) of them along each axis on the finest and is one patch on
    the coarsest, so a finer grid has more nodes in a patch and equally many patches.

    >>> net = LatentSpectralUNet(16, axes=2, scales=3, basis=12, tokens=4, heads=8, norm="batch")
    >>> net(torch.randn(2, 16, 21, 9)).shape
    torch.Size([2, 16, 21, 9])
    """

    def __init__(
        self,
        width: int,
        *,
        axes: int,
        scales: int,
        basis: int,
        tokens: int,
        heads: int,
        norm: Norm,
    ) -> None:
        super().__init__()
        self.axes, self.scales = axes, scales
        widths = [width * 2 ** min(scale, max(scales - 2, 0)) for scale in range(scales)]
        downs = [(width, width, width)]
        downs += [(a, b, b) for a, b in pairwise(widths)]
        # A scale hands on as many channels as the next finer one has.
        ups = [(2 * b, b, a) for a, b in pairwise([width, *widths[:-1]])]
        self.downs = nn.ModuleList(double_convolution(*sizes, axes, norm) for sizes in downs)
        self.ups = nn.ModuleList(double_convolution(*sizes, axes, norm) for sizes in ups)
        self.blocks = nn.ModuleList(
            NeuralSpectralBlock(size, basis=basis, tokens=tokens, heads=heads) for size in widths
        )
        self.out = CONVOLUTION[axes](width, width, 1)

    def patch(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Return the nodes of a patch along each axis.

        >>> net = LatentSpectralUNet(8, axes=2, scales=5, basis=2, tokens=1, heads=8, norm="batch")
        >>> net.patch((221, 51))
        (14, 4)
        """
        tiles = 2 ** (self.scales - 1)
        # At least two: the norm of the coarsest scale cannot work on a single node.
        return tuple(max(2, -(-nodes // tiles)) for nodes in grid)

    def forward(self, x: Float[Tensor, "batch width *grid"]) -> Float[Tensor, "batch width *grid"]:
        """Return the field after all scales, on a grid of any size."""
        grid = x.shape[2:]
        patch = self.patch(grid)
        x = F.pad(x, self._padding(grid, patch))
        seen: list[Tensor] = []
        for scale, down in enumerate(self.downs):
            x = down(x if scale == 0 else POOL[self.axes](x, 2))
            seen.append(x)
        blocks = [cast("NeuralSpectralBlock", block) for block in self.blocks]
        x = blocks[-1](seen[-1], patch)
        for scale in reversed(range(self.scales - 1)):
            finer = F.interpolate(x, scale_factor=2.0, mode=LINEAR[self.axes], align_corners=True)
            x = self.ups[scale](torch.cat((blocks[scale](seen[scale], patch), finer), 1))
        x = self.out(x)
        for axis, nodes in enumerate(grid, 2):
            x = x.narrow(axis, 0, nodes)
        return x

    def _padding(self, grid: tuple[int, ...], patch: tuple[int, ...]) -> list[int]:
        """Return zeros to append so that patches fill the grid, the last axis first."""
        tiles = 2 ** (self.scales - 1)
        missing = [tiles * size - nodes for nodes, size in zip(grid, patch, strict=True)]
        return [number for end in reversed(missing) for number in (0, end)]


def double_convolution(
    inputs: int, middle: int, outputs: int, axes: int, norm: Norm
) -> nn.Sequential:
    """Return two convolutions of three nodes along each axis, each with a norm and a ReLU."""
    convolution, normalise = CONVOLUTION[axes], NORM[norm][axes]
    layers: list[nn.Module] = []
    for a, b in ((inputs, middle), (middle, outputs)):
        layers += [
            convolution(a, b, 3, padding=1, bias=False),
            normalise(b, affine=True),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)
