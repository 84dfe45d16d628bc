"""Carry a function known at some points to others."""

from __future__ import annotations

import itertools
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ono.domain import Domain

_PAIRS_AT_ONCE = 1 << 24


def interpolate(
    domain: Domain,
    values: Float[Tensor, "batch points channels"],
    query: Domain,
    method: Literal["linear", "nearest"],
) -> Float[Tensor, "batch queries channels"]:
    """Return the values at the query points; exact where a query is one of the points.

    On a uniform grid "linear" is multilinear, also across the seam of a periodic one; elsewhere it
    weighs the nearest dim + 1 points by their inverse distance. "nearest" keeps jumps sharp, as of
    a piecewise constant coefficient.

    >>> line = Domain.grid((3,))
    >>> at = Domain(torch.tensor([[[0.25], [1.0]]]))
    >>> interpolate(line, torch.tensor([[[0.0], [2.0], [4.0]]]), at, "linear").flatten().tolist()
    [1.0, 4.0]
    """
    if values.shape[-1] == 0:
        return values.new_zeros(query.batch, query.points, 0)
    if is_uniform(domain):
        return _on_grid(domain, values, query, method)
    return _among_points(domain, values, query, method)


def is_uniform(domain: Domain) -> bool:
    """Say whether the points are the nodes of a uniform grid of the domain's shape."""
    if domain.shape is None or len(domain.shape) != domain.dim or min(domain.shape) < 2:
        return False
    first, last = domain.coords[:, :1], domain.coords[:, -1:]
    unit = Domain.grid(domain.shape, device=first.device, dtype=first.dtype).coords
    place = (domain.coords - first) / (last - first)
    return torch.allclose(place, unit.expand_as(place), rtol=0, atol=1e-3 / max(domain.shape))


def _on_grid(
    domain: Domain, values: Tensor, query: Domain, method: Literal["linear", "nearest"]
) -> Tensor:
    assert domain.shape is not None
    shape = domain.shape
    first, last = domain.coords[:, :1], domain.coords[:, -1:]
    nodes = torch.tensor(shape, device=first.device)
    place = (query.coords - first) / (last - first) * (nodes - 1)
    if domain.periodic:
        place = place.remainder(nodes)
    else:
        place = torch.minimum(place.clamp_min(0), (nodes - 1).to(place.dtype))
    if method == "nearest":
        return _gather(values, _flat_index(place.round().long() % nodes, shape))
    cells = nodes if domain.periodic else nodes - 1
    cell = torch.minimum(place.floor().long(), cells - 1)
    inside = place - cell
    result = torch.zeros(())
    for corner in itertools.product((0, 1), repeat=domain.dim):
        up = torch.tensor(corner, device=cell.device)
        share = torch.where(up == 1, inside, 1 - inside).prod(-1, keepdim=True)
        result = result + share * _gather(values, _flat_index((cell + up) % nodes, shape))
    return result


def _flat_index(index: Tensor, shape: tuple[int, ...]) -> Tensor:
    flat = index[..., 0]
    for axis in range(1, len(shape)):
        flat = flat * shape[axis] + index[..., axis]
    return flat


def _gather(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


def _among_points(
    domain: Domain, values: Tensor, query: Domain, method: Literal["linear", "nearest"]
) -> Tensor:
    count = 1 if method == "nearest" else min(domain.dim + 1, domain.points)
    chunk = max(1, _PAIRS_AT_ONCE // (domain.points * domain.batch))
    parts = []
    for place in query.coords.split(chunk, 1):
        # The expansion |x|² + |y|² - 2xy that cdist prefers would not be zero on a shared point.
        distance = torch.cdist(place, domain.coords, compute_mode="donot_use_mm_for_euclid_dist")
        if domain.mask is not None:
            distance = distance.masked_fill(~domain.mask[:, None], torch.inf)
        near, index = distance.topk(count, largest=False)
        share = 1 / near.clamp_min(torch.finfo(near.dtype).tiny)
        share = torch.where(near[..., :1] == 0, (near == 0).to(near.dtype), share)
        share = share / share.sum(-1, keepdim=True)
        picked = _gather(values, index.flatten(1)).unflatten(1, index.shape[1:])
        parts.append((share[..., None] * picked).sum(-2))
    return torch.cat(parts, 1)
