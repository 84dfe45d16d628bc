"""Carry functions between scattered points without losing what is linear in them.

A point takes the value there of the plane that fits its nearest neighbours best, the nearer ones
more. Nothing here waits for a device: it can be part of a recorded step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ono.domain import Domain

_PAIRS_AT_ONCE = 1 << 24
_FLAT = 1e-2
"""Neighbours that spread by less than this share in a direction say nothing about a slope there."""

_FAR = 3.0
"""Beyond so many spreads from the mean of the neighbours a plane does not go on rising."""


class LocalPlanes:
    """The way from the points of a domain to those of a query.

    It is found without gradients by looking at all pairs; values are then carried with them. A
    query that is one of the points gets its value. Masked points are nobody's neighbours.

    >>> cloud, elsewhere = Domain(Domain.grid((4, 4)).coords), Domain(torch.tensor([[[0.4, 0.6]]]))
    >>> there = LocalPlanes(cloud, elsewhere).carry(cloud.coords)
    >>> torch.allclose(there, elsewhere.coords, atol=1e-3)
    True
    """

    def __init__(self, domain: Domain, query: Domain) -> None:
        with torch.no_grad():
            self.index, self.shares = _ways(domain, query)

    def carry(
        self, values: Float[Tensor, "batch points channels"]
    ) -> Float[Tensor, "batch queries channels"]:
        """Return the values at the query points."""
        picked = _gather(values, self.index)
        there: Tensor = (self.shares[..., None].to(values.dtype) * picked).sum(-2)
        return there


def _ways(domain: Domain, query: Domain) -> tuple[Tensor, Tensor]:
    """Return the nearest points of each query and how much each counts."""
    count = min(2 * domain.dim + 1, domain.points)
    chunk = max(1, _PAIRS_AT_ONCE // (domain.points * domain.batch))
    indices, shares = [], []
    for place in query.coords.split(chunk, 1):
        # The expansion |x|² + |y|² - 2xy that cdist prefers is not zero on a shared point.
        apart = torch.cdist(place, domain.coords, compute_mode="donot_use_mm_for_euclid_dist")
        if domain.mask is not None:
            apart = apart.masked_fill(~domain.mask[:, None], torch.inf)
        near, index = apart.topk(count, largest=False)
        offsets = _gather(domain.coords, index) - place[..., None, :]
        indices.append(index)
        shares.append(_shares(near, offsets))
    return torch.cat(indices, 1), torch.cat(shares, 1)


def times_as_channels(
    carry: Callable[[Tensor], Tensor], values: Float[Tensor, "batch ... points channels"]
) -> Float[Tensor, "batch ... queries channels"]:
    """Carry values [batch points channels], or of several times [batch time points channels]."""
    if values.ndim == 3:
        return carry(values)
    there = carry(values.transpose(1, 2).flatten(2))
    apart: Tensor = there.unflatten(2, (values.shape[1], -1)).transpose(1, 2)
    return apart


def _gather(values: Tensor, index: Tensor) -> Float[Tensor, "batch queries near channels"]:
    flat = index.flatten(1)[..., None].expand(-1, -1, values.shape[-1])
    picked: Tensor = values.gather(1, flat).unflatten(1, index.shape[1:])
    return picked


def _shares(
    near: Float[Tensor, "batch queries near"], offsets: Float[Tensor, "batch queries near dim"]
) -> Float[Tensor, "batch queries near"]:
    """Return how much each neighbour counts, so that linear functions are met.

    With weights θ = 1/distance² the fitted plane at the query is the mean plus, for each direction
    of a basis orthogonal under θ, the slope times how far the query is from the mean.
    """
    weights = (near[..., :1] / near).square()
    weights = torch.where(near[..., :1] == 0, (near == 0).to(near.dtype), weights)
    weights = weights / weights.sum(-1, keepdim=True)

    def mean(x: Tensor) -> Tensor:
        return (weights * x).sum(-1, keepdim=True)

    middle = (weights[..., None] * offsets).sum(-2, keepdim=True)
    spread = mean((offsets - middle).square().sum(-1))[..., None]
    scale = torch.where(spread > 0, spread, torch.ones_like(spread)).rsqrt()
    directions = ((offsets - middle) * scale).unbind(-1)
    places = (-middle * scale).unbind(-1)  # of the query, seen from the mean
    factor = torch.ones_like(weights)
    basis: list[tuple[Tensor, Tensor, Tensor]] = []
    for direction, place in zip(directions, places, strict=True):
        for other, there, inverse in basis:
            slope = mean(direction * other) * inverse
            direction, place = direction - slope * other, place - slope * there
        size = mean(direction.square())
        inverse = size / (size.square() + _FLAT**2)
        reach = _FAR * size.sqrt()
        factor = factor + place.clamp(-reach, reach) * inverse * direction
        basis.append((direction, place, inverse))
    return weights * factor
