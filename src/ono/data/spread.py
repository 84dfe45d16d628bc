"""Spread coordinates evenly: where points crowd, a small distance means much.

A mesh that reaches forty chords from an airfoil has most of its points within one. Scaled to a box,
what tells two shapes apart is lost in the fourth digit; spread by rank, it fills the unit interval.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

KNOTS = 65


class Spread(nn.Module):
    """Map each coordinate to [0, 1] by its share of training points below, linear between knots.

    >>> spread = Spread(dim=1)
    >>> spread.fit(torch.cat((torch.linspace(0, 1, 900), torch.linspace(1, 100, 100)))[:, None])
    >>> shares = spread(torch.tensor([[[0.5], [1.0], [100.0]]])).flatten()
    >>> [round(float(share), 1) for share in shares]
    [0.4, 0.9, 1.0]
    """

    knots: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(0, 1, KNOTS).repeat(dim, 1))

    @torch.no_grad()
    def fit(self, points: Float[Tensor, "points dim"]) -> None:
        """Take the quantiles of the points; knots that coincide are drawn apart a little."""
        shares = torch.linspace(0, 1, KNOTS, dtype=torch.float64, device=points.device)
        ranked = points.double().sort(0).values
        place = shares * (len(points) - 1)
        low = place.floor().long()
        high = (low + 1).clamp_max(len(points) - 1)
        knots = torch.lerp(ranked[low], ranked[high], (place - low)[:, None])
        # Apart by what float32 can tell, and no more than it takes.
        apart = (
            1e-6 * (knots[-1] - knots[0]).clamp_min(1e-12) * torch.arange(KNOTS)[:, None].to(knots)
        )
        knots = (knots - apart).cummax(0).values + apart
        self.knots.copy_(knots.T)

    def forward(
        self, coords: Float[Tensor, "batch points dim"]
    ) -> Float[Tensor, "batch points dim"]:
        """Return spread coordinates; outside of what was seen they go on with the box's slope."""
        columns = []
        for knots, x in zip(self.knots, coords.unbind(-1), strict=True):
            at = torch.searchsorted(knots, x.contiguous()).clamp(1, KNOTS - 1)
            low, high = knots[at - 1], knots[at]
            inside = x.clamp(knots[0], knots[-1])
            share = (at - 1 + (inside - low) / (high - low)) / (KNOTS - 1)
            columns.append(share + (x - inside) / (knots[-1] - knots[0]))
        return torch.stack(columns, -1)
