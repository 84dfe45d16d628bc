"""F-FNO, the Factorised Fourier Neural Operator (Tran, Mathews, Xie, Ong; ICLR 2023).

z₀      = P(a, x)
K z     = Σ_d IFFT_d(R_d FFT_d z)           one axis d at a time
b       = W₂ σ(W₁ K z_ℓ + b₁) + b₂
z_{ℓ+1} = z_ℓ + b
u       = Q(b of the last layer)            on clouds Q(K_out z_L + B x)
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import InputError
from ono.models.f_fno_config import FFNOConfig
from ono.nn.ends import ends_for, per_axis, trunk_axes
from ono.nn.factorised_spectral import FactorisedBlocks
from ono.nn.grid_ends import GridEnds
from ono.nn.measure import at_least_float32
from ono.nn.mlp import EndLinear, Head
from ono.nn.plain_cloud_ends import PlainCloudEnds
from ono.nn.weight_normed import weight_normed
from ono.problem import Problem


class FFNO(nn.Module):
    """Map a function on a grid, a structured mesh or scattered points to another one there.

    Structured meshes are told where their nodes lie; scattered points go to a latent grid and
    back as in Geo-FNO. Queries are evaluated natively where the points are scattered; on grids
    and meshes the output is interpolated linearly. Times are a further axis of a grid or mesh,
    and an input of a cloud.

    >>> import torch
    >>> config = FFNOConfig(width=8, modes=4)
    >>> model = FFNO(config, Problem.grid((17, 17), in_channels=1, out_channels=1))
    >>> model(Domain.grid((33, 33), batch=2), torch.randn(2, 1089, 1)).shape
    torch.Size([2, 1089, 1])
    """

    def __init__(self, config: FFNOConfig, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        width, out = config.width, problem.out_channels
        modes = per_axis("f-fno", "modes", config.modes, trunk_axes(problem))
        layers = config.layers
        self.ends = _ends(config, problem, modes)
        self.lift: nn.Module
        self.head: nn.Module
        if isinstance(self.ends, PlainCloudEnds):
            layers -= 1  # the last one leads back to the points
            self.lift = EndLinear(self.ends.inputs, width)  # P
            self.head = Head(width, config.head, out)  # Q
        else:
            self.lift = weight_normed(self.ends.inputs, width, at_end=True)
            # As released: no activation between the two.
            self.head = nn.Sequential(
                weight_normed(width, config.head), weight_normed(config.head, out, at_end=True)
            )
        self.blocks = FactorisedBlocks(
            width, modes, layers, factor=config.ffn_factor, shared=config.shared
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
        self.problem.refuse_other("f-fno", domain, values, time)
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
        # Under autocast the residual stream stays in float32.
        z = at_least_float32(v).movedim(1, -1)
        last: Tensor
        if isinstance(self.ends, PlainCloudEnds):
            last, _ = self.blocks(z, self.ends.told())
        else:
            _, last = self.blocks(z)
        return last.movedim(-1, 1)


def _ends(
    config: FFNOConfig, problem: Problem, modes: tuple[int, ...]
) -> GridEnds | PlainCloudEnds:
    if problem.shape is not None:
        ends = ends_for(
            "f-fno",
            problem,
            width=config.width,
            modes=modes,
            padding=config.padding,
            position=config.position,
        )
        assert isinstance(ends, GridEnds)
        return ends
    if 2 * max(modes) > config.latent:
        raise InputError(
            f"f-fno with modes {modes} needs a latent grid of at least {2 * max(modes)} nodes "
            f"along each axis, got latent={config.latent}"
        )
    return PlainCloudEnds(
        problem,
        width=config.width,
        modes=modes,
        latent=config.latent,
        deformation_width=config.deformation,
    )
