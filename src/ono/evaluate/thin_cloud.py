"""One of several neighbouring points of a cloud, and planes through the kept ones back to all."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ono.domain import Domain
from ono.nn.hilbert import along_hilbert_curve
from ono.nn.local_planes import LocalPlanes, times_as_channels


class ThinCloud:
    """Some points of a cloud.

    Along a Hilbert curve the points of a sample are cut into runs of so many; the middle of each
    run is kept, in the order the points had, and is given the weights of the whole run. Padding is
    never kept, and what is kept of a sample does not depend on it.
    """

    def __init__(self, whole: Domain, run: int) -> None:
        self.whole = whole
        count, device = -(-whole.points // run), whole.coords.device
        order = along_hilbert_curve(whole)
        starts = torch.arange(count, device=device) * run
        if whole.mask is None:
            middles = (starts + run // 2).clamp_max(whole.points - 1)
            chosen = order[:, middles]
        else:
            real = whole.mask.sum(-1, keepdim=True)
            middles = torch.minimum(starts + run // 2, (real - 1).clamp_min(0))
            chosen = order.gather(1, middles)
            chosen = chosen.masked_fill(starts >= real, whole.points)  # behind all real ones
        chosen, sequence = chosen.sort(1)
        self.index = chosen.clamp_max(whole.points - 1)
        weights = whole.weights
        if weights is not None:
            weights = weights if whole.mask is None else weights * whole.mask
            row = torch.nn.functional.pad(weights.gather(1, order), (0, count * run - whole.points))
            weights = row.unflatten(1, (count, run)).sum(-1).gather(1, sequence)
        mask = None if whole.mask is None else chosen < whole.points
        self.domain = Domain(self.pick(whole.coords), None, weights, mask)

    def pick(
        self, values: Float[Tensor, "batch points channels"]
    ) -> Float[Tensor, "batch kept channels"]:
        """Return the values at the kept points."""
        return values.gather(1, self.index[..., None].expand(-1, -1, values.shape[-1]))

    def carry(
        self, output: Float[Tensor, "batch ... kept out"], query: Domain | None = None
    ) -> Float[Tensor, "batch ... points out"]:
        """Return what is known at the kept points at all of them, or at other points."""
        planes = LocalPlanes(self.domain, query or self.whole)
        return times_as_channels(planes.carry, output)
