"""Points in a row so that neighbours in the row are neighbours in space."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from ono.domain import Domain

_BITS = 12


def along_hilbert_curve(domain: Domain) -> Int[Tensor, "batch points"]:
    """Return the order in which a Hilbert curve through its box meets the points of each sample.

    Padding comes last. Points in one of 4096 cells along each axis keep their order.

    >>> square = Domain(torch.tensor([[[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]]))
    >>> along_hilbert_curve(square).tolist()
    [[0, 2, 1, 3]]
    """
    coords, mask = domain.coords, domain.mask
    low = high = coords
    if mask is not None:
        low, high = (coords.masked_fill(~mask[..., None], x) for x in (torch.inf, -torch.inf))
    low, high = low.amin(1, keepdim=True), high.amax(1, keepdim=True)
    extent = torch.where(high > low, high - low, torch.ones_like(low))
    bits = min(_BITS, 62 // domain.dim)
    unit = ((coords - low) / extent).clamp(0, 1)
    place = distance_along((unit * ((1 << bits) - 1)).long(), bits)
    if mask is not None:
        place = place.masked_fill(~mask, torch.iinfo(place.dtype).max)
    return place.argsort(dim=1, stable=True)


def distance_along(
    cells: Int[Tensor, "batch points dim"], bits: int
) -> Int[Tensor, "batch points"]:
    """Return where on the Hilbert curve of a grid of 2^bits cells an axis each cell lies.

    From the largest cubes to the smallest, the axes inside a cube are flipped and swapped so that
    it is entered where the one before was left (J. Skilling, AIP Conf. Proc. 707, 2004).
    """
    first, *others = cells.unbind(-1)
    for level in range(bits - 1, 0, -1):
        half, lower = 1 << level, (1 << level) - 1
        first = torch.where((first & half) != 0, first ^ lower, first)
        for axis, other in enumerate(others):
            flip = (other & half) != 0
            differ = ((first ^ other) & lower).masked_fill(flip, 0)
            first = torch.where(flip, first ^ lower, first ^ differ)
            others[axis] = other ^ differ
    gray = [first]
    for other in others:
        gray.append(gray[-1] ^ other)
    turn = torch.zeros_like(first)
    for level in range(bits - 1, 0, -1):
        turn = torch.where((gray[-1] & (1 << level)) != 0, turn ^ ((1 << level) - 1), turn)
    # The bits of all axes in turn, those of the first axis ahead.
    axes = torch.stack([axis ^ turn for axis in reversed(gray)], -1)
    bit = torch.arange(bits, device=cells.device)
    place = bit * cells.shape[-1] + torch.arange(cells.shape[-1], device=cells.device)[:, None]
    return (((axes[..., None] >> bit) & 1) << place).sum((-1, -2))
