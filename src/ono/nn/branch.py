"""Networks that read a whole input function at fixed sensors and return some numbers."""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.errors import UnsupportedDomain


class MLP(nn.Sequential):
    """Linear layers with ReLU between them, and behind the last if asked for."""

    def __init__(self, widths: list[int], *, ends_active: bool = False) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*(layers if ends_active else layers[:-1]))


class ConvolutionalBranch(nn.Module):
    """Two convolutions of five nodes and stride two, then two dense layers.

    As in the comparison of Lu et al. (2022): on their 29 x 29 nodes of one channel, 5 x 5 x 128
    numbers reach the dense layers.
    """

    channels = (64, 128)

    def __init__(self, shape: tuple[int, ...], inputs: int, width: int, out: int) -> None:
        super().__init__()
        kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
        left = tuple(((n - 3) // 2 - 3) // 2 for n in shape)
        if len(shape) not in kinds or min(left) < 1:
            raise UnsupportedDomain(
                "the convolutional branch of deeponet needs one to three axes of at least 13 "
                f'nodes, got {shape}; set model.branch="mlp"'
            )
        convolution = kinds[len(shape)]
        self.shape = shape
        first, second = self.channels
        self.net = nn.Sequential(
            convolution(inputs, first, 5, stride=2),
            nn.ReLU(),
            convolution(first, second, 5, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            MLP([torch.Size(left).numel() * second, width, out]),
        )

    def forward(self, x: Float[Tensor, "batch points channels"]) -> Float[Tensor, "batch out"]:
        """Return the numbers of each sample."""
        numbers: Tensor = self.net(x.mT.unflatten(-1, self.shape))
        return numbers
