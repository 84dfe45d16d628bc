"""LSM, the Latent Spectral Model (Wu, Hu, Luo, Wang, Long; ICML 2023).

A U-Net carries the input to several scales. On each of them, in every patch,

    T  = T₀ + attention of the tokens T₀ to the nodes      into the latent space
    T' = T + Σ_i w_i sin(π i T / n) + w'_i cos(π i T / n)  the operator there
    x' = x + attention of the nodes x to the tokens T'     and back
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import UnsupportedDomain
from ono.models.lsm_config import LSMConfig
from ono.nn.ends import ends_for, trunk_axes
from ono.nn.latent_spectral_unet import LatentSpectralUNet
from ono.nn.mlp import EndLinear, Head
from ono.problem import Problem


class LSM(nn.Module):
    """Map a function on a grid, a structured mesh or scattered points to another one there.

    A patch is a share of the domain, not a number of nodes: on another grid the same patches hold
    more or fewer nodes. The convolutions of the U-Net still see three nodes, so a model carries
    over to another resolution only roughly.

    Structured meshes are told where their nodes lie; scattered points go to a latent grid and
    back as in Geo-FNO. Queries are evaluated natively where the points are scattered; on grids
    and meshes the output is interpolated linearly. Times are a further axis of a grid or mesh,
    and an input of a cloud.

    >>> import torch
    >>> config = LSMConfig(width=8, scales=3)
    >>> model = LSM(config, Problem.grid((17, 17), in_channels=1, out_channels=1))
    >>> model(Domain.grid((33, 33), batch=2), torch.randn(2, 1089, 1)).shape
    torch.Size([2, 1089, 1])
    """

    def __init__(self, config: LSMConfig, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        axes = trunk_axes(problem)
        if axes > 3:
            raise UnsupportedDomain(
                f"lsm has convolutions along one to three axes, got {axes}"
                f"{', time among them' if problem.timed else ''}; use ono, gnot or transolver"
            )
        self.ends = ends_for(
            "lsm",
            problem,
            width=config.width,
            modes=config.modes,
            position=config.position,
            latent=config.latent,
            deformation_width=config.deformation,
        )
        self.lift = EndLinear(self.ends.inputs, config.width)
        self.unet = LatentSpectralUNet(
            config.width,
            axes=axes,
            scales=config.scales,
            basis=config.basis,
            tokens=config.tokens,
            heads=config.heads,
            norm=config.norm,
        )
        self.head = Head(config.width, config.head, problem.out_channels)

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
        self.problem.refuse_other("lsm", domain, values, time)
        output: Tensor = self.ends(
            domain,
            values,
            lift=self.lift,
            trunk=self.unet,
            head=self.head,
            query=query,
            time=time,
        )
        return output
