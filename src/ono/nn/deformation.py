"""The learned deformation of Geo-FNO (Li, Huang, Liu, Anandkumar; JMLR 2023).

It takes the points of an irregular domain to the unit torus, where a uniform grid and its Fourier
modes live.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Deformation(nn.Module):
    """Map physical points x to computational places ξ = x + x · f(x).

    f sees x, its angles and its distance around the centre of the unit box, and sines and cosines
    of these at 2⁰π, 2¹π, … It is the published network without the code of the boundary.

    >>> Deformation(dim=2)(torch.rand(3, 10, 2)).shape
    torch.Size([3, 10, 2])
    """

    frequencies: Tensor

    def __init__(self, dim: int, width: int = 32) -> None:
        super().__init__()
        polar = 2 * dim  # x, angles, distance
        octaves = width // 4
        self.register_buffer("frequencies", math.pi * 2.0 ** torch.arange(octaves), False)
        self.lift = nn.Linear(polar, width)
        self.join = nn.Linear(width + 2 * polar * octaves, 4 * width)
        hidden = [layer for _ in range(3) for layer in (nn.Linear(4 * width, 4 * width), nn.Tanh())]
        self.net = nn.Sequential(*hidden, nn.Linear(4 * width, dim))

    def forward(self, x: Float[Tensor, "batch points dim"]) -> Float[Tensor, "batch points dim"]:
        """Return ξ in float32 or better: its error grows with the wave number."""
        with torch.autocast(x.device.type, enabled=False):
            seen = polar_features(x)
            angles = (seen[..., None] * self.frequencies).flatten(-2)
            joined = self.join(torch.cat((self.lift(seen), angles.sin(), angles.cos()), -1))
            place: Tensor = x + x * self.net(joined)
            return place


def polar_features(
    x: Float[Tensor, "batch points dim"],
) -> Float[Tensor, "batch points polar"]:
    """Return x, its angles around the centre 0.5 and its distance from there.

    >>> polar_features(torch.tensor([[[0.5, 1.0]]])).mul(2 / math.pi)[0, 0, 2].item()
    1.0
    """
    centred = x - 0.5
    angles = [torch.atan2(centred[..., 1], centred[..., 0])] if x.shape[-1] > 1 else []
    angles += [  # in space, from the axis that the earlier ones do not span
        torch.atan2(centred[..., :axis].norm(dim=-1), centred[..., axis])
        for axis in range(2, x.shape[-1])
    ]
    distance = centred.norm(dim=-1)
    return torch.cat((x, torch.stack((*angles, distance), -1)), -1)
