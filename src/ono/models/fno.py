"""The Fourier Neural Operator (Li et al., ICLR 2021), on uniform grids of one to three axes.

v₀      = P(a, x)
v_{t+1} = σ(W v_t + K v_t)          Eq. 2, K of Eq. 4; no σ behind the last layer
u       = Q(v_T)
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import UnsupportedDomain
from ono.models.fno_config import FNOConfig
from ono.nn.ends import ends_for, per_axis, trunk_axes
from ono.nn.fourier_layer import FourierLayer
from ono.nn.mlp import EndLinear, Head
from ono.problem import Problem


class FNO(nn.Module):
    """Map a function on a uniform grid to a function on the same grid, whatever its size.

    Times are a further axis of the grid. Queries get the output interpolated linearly.

    >>> import torch
    >>> model = FNO(FNOConfig(width=8), Problem.grid((17, 17), in_channels=1, out_channels=1))
    >>> model(Domain.grid((33, 33), batch=2), torch.randn(2, 1089, 1)).shape
    torch.Size([2, 1089, 1])
    """

    def __init__(self, config: FNOConfig, problem: Problem) -> None:
        super().__init__()
        if problem.kind != "grid":
            raise UnsupportedDomain(
                f"fno needs a uniform grid, got {_mesh(problem)}: its Fourier modes are "
                "those of the grid; use geo-fno, ono, gnot or transolver"
            )
        self.config, self.problem = config, problem
        modes = per_axis("fno", "modes", config.modes, trunk_axes(problem))
        self.ends = ends_for(
            "fno", problem, width=config.width, modes=modes, padding=config.padding
        )
        self.lift = EndLinear(self.ends.inputs, config.width)  # P
        self.layers = nn.ModuleList(FourierLayer(config.width, modes) for _ in range(config.layers))
        self.head = Head(config.width, config.head, problem.out_channels)  # Q

    def forward(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        query: Domain | None = None,
        time: Float[Tensor, " batch"] | Float[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return the output at the nodes, or interpolated at the points of `query`.

        All times are answered together: [batch time] gives [batch time points out].
        """
        self.problem.refuse_other("fno", domain, values, time)
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
        *first, last = self.layers
        for layer in first:
            v = nn.functional.gelu(layer(v))
        output: Tensor = last(v)
        return output


def _mesh(problem: Problem) -> str:
    if problem.shape is not None:
        return f"a structured mesh of {' x '.join(map(str, problem.shape))} nodes"
    return "scattered points" if problem.points is None else f"{problem.points} scattered points"
