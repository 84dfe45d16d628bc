"""Geo-FNO (Li, Huang, Liu, Anandkumar; JMLR 2023): Fourier layers for any geometry.

On a uniform grid it is FNO. On a structured mesh it is FNO on the logical grid, told where the
nodes lie. Scattered points are deformed to a torus with a latent grid:

    v₀      = σ(K_in P(a, x) + B ξ)         from the points to the latent grid
    v_{t+1} = σ(W v_t + K v_t + B ξ)
    u       = Q(K_out v_T + B x)            from the latent grid to any points
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.models.geo_fno_config import GeoFNOConfig
from ono.nn.ends import ends_for, per_axis, trunk_axes
from ono.nn.fourier_layer import FourierLayer
from ono.nn.mlp import EndLinear, Head
from ono.problem import Problem


class GeoFNO(nn.Module):
    """Map a function on a grid, a structured mesh or scattered points to another one there.

    Queries are evaluated natively where the points are scattered; on grids and meshes the output
    is interpolated linearly. Times are a further axis of a grid or mesh, and an input of a cloud.

    >>> import torch
    >>> problem = Problem(dim=2, in_channels=0, out_channels=1)
    >>> model = GeoFNO(GeoFNOConfig(width=8, modes=4, latent=12), problem)
    >>> cloud, elsewhere = Domain(torch.rand(2, 50, 2)), Domain(torch.rand(2, 7, 2))
    >>> model(cloud, torch.zeros(2, 50, 0), query=elsewhere).shape
    torch.Size([2, 7, 1])
    """

    def __init__(self, config: GeoFNOConfig, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        self.on_cloud = problem.shape is None
        modes = per_axis("geo-fno", "modes", config.modes, trunk_axes(problem))
        self.ends = ends_for(
            "geo-fno",
            problem,
            width=config.width,
            modes=modes,
            padding=config.padding,
            position=config.position,
            latent=config.latent,
            deformation_width=config.deformation,
        )
        self.lift = EndLinear(self.ends.inputs, config.width)  # P
        told = problem.dim if self.on_cloud else 0
        self.layers = nn.ModuleList(
            FourierLayer(config.width, modes, dim=told)
            for _ in range(config.layers - self.on_cloud)
        )
        self.head = Head(config.width, config.head, problem.out_channels)  # Q

    def forward(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        query: Domain | None = None,
        time: Float[Tensor, " batch"] | Float[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return the output at the points of `domain`, or at those of `query`.

        With times of shape [batch time] the result is [batch time points out].
        """
        self.problem.refuse_other("geo-fno", domain, values, time)
        output: Tensor = self.ends(
            domain,
            values,
            lift=self.lift,
            trunk=self._trunk,
            head=self.head,
            query=query,
            time=time,
        )
        return output

    def _trunk(self, v: Float[Tensor, "batch width *grid"]) -> Float[Tensor, "batch width *grid"]:
        for index, layer in enumerate(self.layers, 1):
            v = layer(v, self.ends.place)
            # On a grid the last layer is followed by Q, which has an activation of its own.
            if self.on_cloud or index < len(self.layers):
                v = nn.functional.gelu(v)
        return v
