"""The Galerkin Transformer (Cao; NeurIPS 2021).

Attention without softmax is a Petrov-Galerkin projection: the columns of v are tested against
those of k, and the result is spanned by those of q.

    x = E(f)                                  down-scaler, or a linear map of f and the place
    x = x + [q, p] ([k, p]ᵀ [v, p]) / M       p the coordinates, in every head
    x = x + FFN(x)
    u = D(x)                                  up-scaler and two spectral layers, or point-wise
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ono.domain import Domain
from ono.errors import UnsupportedDomain
from ono.models.each_time import each_time
from ono.models.galerkin_config import GalerkinConfig
from ono.nn.embedding import TimeEmbedding
from ono.nn.galerkin_attention import Context, CoordinateGalerkinAttention
from ono.nn.interpolation import interpolate
from ono.nn.measure import Measure, at_least_float32
from ono.nn.mlp import EndLinear
from ono.nn.scalers import DownScaler, UpScaler, resize
from ono.nn.spectral import SpectralConv
from ono.problem import Problem

_TIME_SCALE = 100.0
"""Multiplies times in [0, 1], so that the features of different times differ."""
_RIM_SCALE = 10.0
"""Multiplies the learned value of the rim: Adam moves a lone number slowly."""


class Galerkin(nn.Module):
    """Map a function on points to a function on the same or other points.

    At other points the form "points" continues there, reading what the input points left; the
    inputs are interpolated. On grids the output is interpolated.

    >>> problem = Problem.grid((21, 21), in_channels=1, out_channels=1)
    >>> model = Galerkin(GalerkinConfig(width=16, layers=2, coarse=11, modes=4), problem)
    >>> model.eval()(Domain.grid((21, 21), batch=4), torch.randn(4, 441, 1)).shape
    torch.Size([4, 441, 1])
    """

    def __init__(self, config: GalerkinConfig, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        self.form = _form(config, problem)
        width, dim, out = config.width, problem.dim, problem.out_channels
        narrow = config.spectral_width

        self.encoder: nn.Module = EndLinear(problem.in_channels + dim, width)
        if self.form == "scaled":
            self.encoder = DownScaler(problem.in_channels, width, dim, config.dropout)
        self.time = TimeEmbedding(width, _TIME_SCALE) if problem.timed else None
        self.blocks = nn.ModuleList(GalerkinBlock(config, dim) for _ in range(config.layers))

        if self.form == "scaled":
            self.upscaler = UpScaler(width, dim)
            self.narrow = EndLinear(width + dim, narrow)
            self.decoder: nn.Module = SpectralDecoder(config, narrow, 2 * dim * narrow, problem)
        elif self.form == "lite":
            self.decoder = SpectralDecoder(config, width, narrow, problem)
        else:
            self.decoder = nn.Sequential(
                EndLinear(width + dim, width), nn.SiLU(), EndLinear(width, out)
            )
        # Cao sets the rim to zero after undoing the normalisation; here that is a constant.
        self.rim = nn.Parameter(torch.zeros(out)) if config.boundary == "constant" else None

    def forward(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        query: Domain | None = None,
        time: Float[Tensor, " batch"] | Float[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return the output function at the points of `domain`, or at those of `query`."""
        self.problem.refuse_other("galerkin", domain, values, time)
        if time is not None and time.ndim == 2:
            return each_time(self, domain, values, query, time)
        if self.form == "points":
            return self._on_points(domain, values, query, time)
        output = self._on_grid(domain, values, time)
        return output if query is None else interpolate(domain, output, query, "linear")

    def _on_points(
        self, domain: Domain, values: Tensor, query: Domain | None, time: Tensor | None
    ) -> Float[Tensor, "batch places out"]:
        # The publication has the plain mean 1/M; weights are an option.
        measure = Measure(domain.measure(quadrature=self.config.measure == "weights"))
        x = self._lift(domain, values, time)
        contexts = []
        for block in self.blocks:
            x, context = block(x, domain.coords, measure)
            contexts.append(context)
        coords = domain.coords
        if query is not None:
            coords = query.coords
            x = self._lift(query, interpolate(domain, values, query, "linear"), time)
            for block, context in zip(self.blocks, contexts, strict=True):
                assert isinstance(block, GalerkinBlock)
                x = block.read(x, coords, context)
        output: Tensor = self.decoder(torch.cat((x, coords), -1))
        return output

    def _on_grid(
        self, domain: Domain, values: Tensor, time: Tensor | None
    ) -> Float[Tensor, "batch points out"]:
        grid = self.problem.shape_of("galerkin", domain)
        if domain.mask is not None:
            raise UnsupportedDomain(
                f"galerkin with form={self.form} needs every node of a grid, got a mask; use "
                "form=points"
            )
        coords, at = domain.coords, grid
        if self.form == "scaled":
            at = tuple(min(n, self.config.coarse) for n in grid)
            x = self.encoder(_field(values, grid), at).flatten(2).mT
            x = self._at_time(x, time)
            coords = resize(_field(coords, grid), at).flatten(2).mT
        else:
            x = self._lift(domain, values, time)
        for block in self.blocks:
            x, _ = block(x, coords, Measure())  # 1/M: the nodes are evenly spaced
        field = _field(x, at)
        if self.form == "scaled":
            field = torch.cat((self.upscaler(field, grid), _field(domain.coords, grid)), 1)
            field = self.narrow(field.movedim(1, -1)).movedim(-1, 1)
        output: Tensor = self.decoder(field)
        if self.rim is not None:
            inside = output.new_zeros([n - 2 for n in grid])
            on_rim = F.pad(inside, (1, 1) * len(grid), value=1.0)[..., None] > 0
            output = torch.where(on_rim, _RIM_SCALE * self.rim.to(output.dtype), output)
        return output.flatten(1, -2)

    def _lift(
        self, where: Domain, values: Tensor, time: Tensor | None
    ) -> Float[Tensor, "batch points width"]:
        return self._at_time(self.encoder(torch.cat((values, where.coords), -1)), time)

    def _at_time(self, x: Tensor, time: Tensor | None) -> Float[Tensor, "batch points width"]:
        x = at_least_float32(x)  # under autocast the residual stream stays in float32
        return x if self.time is None or time is None else x + self.time(time)[:, None]


class GalerkinBlock(nn.Module):
    """Galerkin attention and an FFN, each added to the stream."""

    def __init__(self, config: GalerkinConfig, dim: int) -> None:
        super().__init__()
        width, eps, after = config.width, config.norm_eps, config.norm == "block"
        self.attention = CoordinateGalerkinAttention(
            width, config.heads, dim, None if after else eps
        )
        self.ffn = nn.Sequential(
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(2 * width, width),
        )
        self.norm_attention: nn.Module = nn.LayerNorm(width, eps) if after else nn.Identity()
        self.norm_ffn: nn.Module = nn.LayerNorm(width, eps) if after else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "batch points width"],
        coords: Float[Tensor, "batch points dim"],
        measure: Measure,
    ) -> tuple[Float[Tensor, "batch points width"], Context]:
        """Return the next x and what other points need."""
        attended, context = self.attention(x, coords, measure)
        return self._finish(x, attended), context

    def read(
        self,
        x: Float[Tensor, "batch queries width"],
        coords: Float[Tensor, "batch queries dim"],
        context: Context,
    ) -> Float[Tensor, "batch queries width"]:
        """Return the next x at other points."""
        return self._finish(x, self.attention.read(x, coords, context))

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.norm_attention(x + self.dropout(attended))
        moved: Tensor = self.norm_ffn(x + self.dropout(self.ffn(x)))
        return moved


class SpectralDecoder(nn.Module):
    """Two spectral layers and a point-wise network, from channels first to channels last."""

    def __init__(self, config: GalerkinConfig, width: int, hidden: int, problem: Problem) -> None:
        super().__init__()
        narrow, modes = config.spectral_width, (config.modes,) * problem.dim
        widths = ((width, narrow), (narrow, narrow))
        self.spectral = nn.ModuleList(SpectralConv(a, b, modes) for a, b in widths)
        self.local = nn.ModuleList(nn.Linear(a, b) for a, b in widths)
        self.out = nn.Sequential(
            nn.Linear(narrow, hidden), nn.SiLU(), EndLinear(hidden, problem.out_channels)
        )
        for conv, (before, after) in zip(self.spectral, widths, strict=True):
            # Xavier's start for a tensor of all kept modes is far smaller than that of FNO.
            std = 1 / (before * after * math.sqrt(math.prod(modes)))
            nn.init.normal_(conv.get_parameter("weight"), std=std)

    def forward(self, x: Float[Tensor, "batch width *grid"]) -> Float[Tensor, "batch *grid out"]:
        """Return the output at the nodes of the grid."""
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = F.silu(spectral(x) + local(x.movedim(1, -1)).movedim(-1, 1))
        output: Tensor = self.out(x.movedim(1, -1))
        return output


def _field(
    x: Float[Tensor, "batch points channels"], grid: tuple[int, ...]
) -> Float[Tensor, "batch channels *grid"]:
    """Lay points out on their grid, channels first."""
    field: Tensor = x.mT.unflatten(-1, grid)
    return field


def _form(config: GalerkinConfig, problem: Problem) -> Literal["scaled", "lite", "points"]:
    """Return the form for a problem, or refuse one that the chosen form cannot handle."""
    uniform = problem.kind == "grid" and problem.dim <= 3
    form = config.form
    if form == "auto":
        form = "scaled" if uniform and problem.in_channels else "points"
    if form != "points" and not uniform:
        count = "" if problem.points is None else f"{problem.points} "
        got = {
            "grid": f"a grid of {problem.dim} axes",
            "structured": f"a curved mesh of shape {problem.shape}",
            "cloud": f"{count}scattered points",
        }[problem.kind]
        raise UnsupportedDomain(
            f"galerkin with form={form} needs a uniform grid of at most three axes for its "
            f"spectral layers, got {got}; use form=points"
        )
    if form == "scaled" and not problem.in_channels:
        raise UnsupportedDomain(
            "galerkin with form=scaled reads its input with convolutions, got no input channels; "
            "use form=lite or form=points"
        )
    if form == "points" and config.boundary == "constant":
        raise UnsupportedDomain(
            "galerkin with form=points knows no rim, got boundary=constant; use boundary=free"
        )
    return form
