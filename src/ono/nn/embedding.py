"""Turn a time into features."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class TimeEmbedding(nn.Module):
    """Embed a time by sines and cosines of many periods, then two layers.

    `scale` multiplies the time first. With the released scale of one and times in [0, 1], most
    of the angles stay near zero and say nothing.
    """

    frequencies: Tensor

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        half = (width + 1) // 2
        rates = torch.exp(-math.log(1e4) * torch.arange(half) / half)
        self.register_buffer("frequencies", scale * rates, persistent=False)
        self.width = width
        self.net = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, time: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
        """Return the features of each time."""
        angles = time[..., None] * self.frequencies
        waves = torch.cat((angles.cos(), angles.sin()), -1)[..., : self.width]
        embedded: Tensor = self.net(waves)
        return embedded


class Octaves(nn.Module):
    """Append sines and cosines of x, each octave twice as fast: sin 2^j π x, cos 2^j π x.

    A network of few layers learns slowly what varies fast in its inputs; these it is given.

    >>> Octaves(2)(torch.zeros(1)).tolist()
    [0.0, 0.0, 0.0, 1.0, 1.0]
    """

    powers: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("powers", torch.exp2(torch.arange(count)), persistent=False)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch more"]:
        """Return x with its waves."""
        if not len(self.powers):
            return x
        angles = math.pi * (x[..., None, :] * self.powers[:, None]).flatten(-2)
        return torch.cat((x, angles.sin(), angles.cos()), -1)
