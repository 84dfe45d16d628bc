"""Ends for scattered points with nothing to learn on the way in, as F-FNO has them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ono.domain import Domain
from ono.nn.cloud_ends import CloudEnds
from ono.nn.fourier_matrices import synthesise_pairs
from ono.nn.measure import Measure
from ono.nn.nonuniform_dft import analyse_at
from ono.problem import Problem


class PlainCloudEnds(CloudEnds):
    """The ends of Geo-FNO, with the low modes of the features as they are on the latent grid.

    No matrices R multiply them and no activation follows. `told` is the linear map of the
    coordinates, which F-FNO adds again in each of its layers.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        width: int,
        modes: tuple[int, ...],
        latent: int,
        deformation_width: int = 32,
    ) -> None:
        super().__init__(
            problem, width=width, modes=modes, latent=latent, deformation_width=deformation_width
        )
        self.register_parameter("r_in", None)

    def told(self) -> Float[Tensor, "one *grid width"]:
        """Return what the latent nodes are told about where they are."""
        told: Tensor = self.coords_in(self.place.movedim(0, -1))[None]
        return told

    def _to_grid(
        self,
        h: Float[Tensor, "batch points width"],
        places: Float[Tensor, "batch points dim"],
        domain: Domain,
    ) -> Float[Tensor, "batch width *grid"]:
        coefficients = analyse_at(h, places, self.kept, Measure(domain.measure()))
        with torch.autocast(h.device.type, enabled=False):
            v = synthesise_pairs(coefficients, self.grid)
        return v + self.told().movedim(-1, 1)
