"""Sub-sampling before the network, interpolation behind it: the remedy for memory.

The network sees some of the points, and its memory shrinks with their number; the answer is given
and scored at all of them. What is lost is what the input says between the kept points, and the
part of the output that is not linear between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ono.domain import Domain
from ono.evaluate.thin_cloud import ThinCloud
from ono.evaluate.thin_mesh import ThinMesh, thin_shape


@dataclass(frozen=True, slots=True)
class Thinning:
    """Keep every n-th node along each axis of a mesh, or one of n^dim points of a cloud.

    Where a domain has no weights the kept points have none: all count alike, as before.

    >>> thin = Thinning(2)(Domain.grid((9, 9)))
    >>> thin.domain.shape, thin.carry(thin.pick(Domain.grid((9, 9)).coords)).shape
    ((5, 5), torch.Size([1, 81, 2]))
    """

    every: int
    periodic: bool = False

    def __call__(self, domain: Domain) -> ThinMesh | ThinCloud:
        """Choose the points of a domain; what is returned knows them and the way back to all."""
        if domain.shape is None:
            return ThinCloud(domain, int(self.every**domain.dim))
        return ThinMesh(domain, self.every, periodic=self.periodic)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the logical shape of what is kept of a mesh."""
        return thin_shape(shape, self.every, periodic=self.periodic)

    def points(self, points: int, dim: int) -> int:
        """Return how many points of a cloud are kept."""
        return -(-points // int(self.every**dim))

    def kept(self, domain: Domain) -> int:
        """Return how many points of a domain are kept, padding included."""
        if domain.shape is None:
            return self.points(domain.points, domain.dim)
        return math.prod(self.shape(domain.shape))
