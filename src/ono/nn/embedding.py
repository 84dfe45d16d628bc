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


def octaves(x: Float[Tensor, "*batch dim"], count: int) -> Float[Tensor, "*batch more"]:
    """Append sines and cosines of x, each octave twice as fast: sin 2^j π x, cos 2^j π x.

    A network of few layers learns slowly what varies fast in its inputs; these it is given.

    >>> octaves(torch.zeros(1), 2).tolist()
    [0.0, 0.0, 0.0, 1.0, 1.0]
    """
    if count == 0:
        return x
    rates = math.pi * 2.0 ** torch.arange(count, device=x.device, dtype=x.dtype)
    angles = (x[..., None, :] * rates[:, None]).flatten(-2)
    return torch.cat((x, angles.sin(), angles.cos()), -1)
