"""U-FNO (Wen, Li, Azizzadenesheli, Anandkumar, Benson; 2022): FNO with a U-Net beside it.

    v_{l+1} = σ(K v_l + W v_l)                  Fourier layers
    v_{m+1} = σ(K v_m + U v_m + W v_m)          U-Fourier layers, the last ones

Its ends are those of Geo-FNO.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import InputError, UnsupportedDomain
from ono.models.u_fno_config import UFNOConfig
from ono.nn.ends import ends_for, per_axis, trunk_axes
from ono.nn.fourier_layer import FourierLayer
from ono.nn.mlp import EndLinear
from ono.nn.unet_path import UNetPath
from ono.problem import Problem


class UFNO(nn.Module):
    """Map a function on a grid, a structured mesh or scattered points to another one there.

    Queries are evaluated natively where the points are scattered; on grids and meshes the output
    is interpolated linearly. Times are a further axis of a grid or mesh, and an input of a cloud.

    >>> import torch
    >>> problem = Problem.grid((20, 20), in_channels=1, out_channels=1)
    >>> model = UFNO(UFNOConfig(width=8, modes=4), problem)
    >>> model(Domain.grid((20, 20), batch=2), torch.randn(2, 400, 1)).shape
    torch.Size([2, 400, 1])
    """

    def __init__(self, config: UFNOConfig, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        axes, on_cloud = trunk_axes(problem), problem.shape is None
        if axes > 3:
            raise UnsupportedDomain(
                f"u-fno needs a grid of at most three axes, got {axes} (time is one of them): "
                "there are no convolutions in more; use ono, gnot or transolver"
            )
        layers = config.layers - on_cloud
        if config.unet_layers > layers:
            raise InputError(
                f"u-fno has unet_layers={config.unet_layers}, but only {layers} layers work on "
                "its grid"
            )
        modes = per_axis("u-fno", "modes", config.modes, axes)
        self.ends = ends_for(
            "u-fno",
            problem,
            width=config.width,
            modes=modes,
            padding=config.padding,
            position=config.position,
            latent=config.latent,
            deformation_width=config.deformation,
        )
        self.lift = EndLinear(self.ends.inputs, config.width)
        told = problem.dim if on_cloud else 0
        self.layers = nn.ModuleList(
            FourierLayer(config.width, modes, dim=told) for _ in range(layers)
        )
        self.paths = nn.ModuleList(
            UNetPath(config.width, axes, config.norm) for _ in range(config.unet_layers)
        )
        self.head = nn.Sequential(
            nn.Linear(config.width, config.head),
            nn.ReLU(),
            EndLinear(config.head, problem.out_channels),
        )

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
        self.problem.refuse_other("u-fno", domain, values, time)
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
        plain = len(self.layers) - len(self.paths)
        for index, layer in enumerate(self.layers):
            moved = layer(v, self.ends.place)
            if index >= plain:
                moved = moved + self.paths[index - plain](v)
            v = nn.functional.relu(moved)
        return v
