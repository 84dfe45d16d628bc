"""From scattered points to a latent grid and back, as Geo-FNO does it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.nn.deformation import Deformation
from ono.nn.fourier_matrices import analyse_pairs, mix_pairs, synthesise_pairs
from ono.nn.grid_ends import Net
from ono.nn.measure import Measure, at_least_float32
from ono.nn.mlp import EndLinear
from ono.nn.nonuniform_dft import analyse_at, synthesise_at
from ono.nn.spectral import kept_modes, spectral_weight
from ono.problem import Problem


class CloudEnds(nn.Module):
    """Set a trunk [batch width *grid] -> [batch width *grid] between scattered points.

    The points are deformed to places ξ on the unit torus. There the Fourier coefficients of the
    lifted features are multiplied by matrices R and evaluated on a uniform latent grid; behind the
    trunk they are taken again and evaluated at any ξ, so queries need no interpolation. Both ways
    add a linear map of the coordinates, the first ends in a GELU.

    A point is told its coordinates and values, and the time where there is one; several times
    are samples of their own. `place` holds the coordinates of the latent nodes for the trunk.
    """

    place: Tensor

    def __init__(
        self,
        problem: Problem,
        *,
        width: int,
        modes: tuple[int, ...],
        latent: int,
        deformation_width: int = 32,
    ) -> None:
        super().__init__()
        self.axes = problem.dim
        self.inputs = problem.in_channels + problem.dim + problem.timed
        self.grid = (latent,) * problem.dim
        self.kept = kept_modes(self.grid, modes)
        self.deformation = Deformation(problem.dim, deformation_width)
        self.r_in = spectral_weight(width, width, modes)
        self.r_out = spectral_weight(width, width, modes)
        self.coords_in = EndLinear(problem.dim, width)
        self.coords_out = EndLinear(problem.dim, width)
        axis = torch.arange(latent) / latent
        nodes = torch.stack(torch.meshgrid(*(axis,) * problem.dim, indexing="ij"))
        self.register_buffer("place", nodes, persistent=False)

    def forward(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        lift: Net,
        trunk: Net,
        head: Net,
        query: Domain | None = None,
        time: Tensor | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return the output at the points of `domain`, or at those of `query`.

        Lift and head act on single points, [batch points channels].
        """
        count = time.shape[1] if time is not None and time.ndim == 2 else None
        if count is not None:
            domain, values = domain.repeat(count), values.repeat_interleave(count, 0)
            query = None if query is None else query.repeat(count)
        features = torch.cat((domain.coords, values), -1)
        if time is not None:
            clock = time.reshape(-1, 1, 1).expand(-1, domain.points, -1)
            features = torch.cat((features, clock), -1)
        there = domain if query is None else query
        places = self.deformation(domain.coords)
        v = trunk(self._to_grid(lift(features), places, domain))
        places = places if query is None else self.deformation(query.coords)
        output = head(self._to_points(v, places) + self.coords_out(there.coords))
        return output if count is None else output.unflatten(0, (-1, count))

    def _to_grid(
        self,
        h: Float[Tensor, "batch points width"],
        places: Float[Tensor, "batch points dim"],
        domain: Domain,
    ) -> Float[Tensor, "batch width *grid"]:
        # Coefficients are integrals: with quadrature weights crowded points do not count double.
        # The publication sums over points, which is the case without weights.
        coefficients = analyse_at(h, places, self.kept, Measure(domain.measure()))
        with torch.autocast(h.device.type, enabled=False):
            v = synthesise_pairs(mix_pairs(coefficients, self.r_in), self.grid)
        told: Tensor = self.coords_in(self.place.movedim(0, -1)).movedim(-1, 0)
        return nn.functional.gelu(v + told)

    def _to_points(
        self, v: Float[Tensor, "batch width *grid"], places: Float[Tensor, "batch points dim"]
    ) -> Float[Tensor, "batch points width"]:
        with torch.autocast(v.device.type, enabled=False):
            coefficients = analyse_pairs(at_least_float32(v), self.kept)
            return synthesise_at(mix_pairs(coefficients, self.r_out), places)
