"""The Orthogonal Neural Operator (Xiao, Hao, Lin, Deng, Su; ICML 2024).

Two flows run side by side. The lower flow g learns eigenfunctions with transformer blocks and
never sees the upper one. The upper flow h is the solution: in each layer the kernel integral
operator built from the eigenfunctions acts on it.

    g⁰, h¹ = E(x, f)
    g  = NN block(g)                          Eq. 3
    ψ  = ort(g w_Q)                           Eqs. 4, 7-9
    h̃  = ψ diag(μ) [ψᵀ (h w_V)]               Eq. 5
    h  = σ(h̃, h)                              Eq. 6
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import ShapeError, UnsupportedDomain
from ono.models.each_time import each_time
from ono.models.ono_config import LowerOptions, ONOConfig
from ono.nn.attention import (
    Attention,
    EfficientAttention,
    GalerkinAttention,
    LinearAttention,
    NystromAttention,
    SoftmaxAttention,
    Summary,
)
from ono.nn.blocks import NNBlock, OrthogonalBlock
from ono.nn.embedding import TimeEmbedding
from ono.nn.interpolation import interpolate
from ono.nn.measure import Measure, at_least_float32
from ono.nn.mlp import FFN, initialise
from ono.nn.orthogonal_attention import OrthogonalAttention, Told
from ono.problem import Problem

Seen = list[tuple[Summary, Told]]
"""What each layer keeps of the input points: enough to evaluate the output anywhere."""


class ONO(nn.Module):
    """Map a function on points to a function on the same or other points.

    >>> from ono.domain import Domain
    >>> model = ONO(ONOConfig(width=16, layers=2), Problem(dim=2, in_channels=1, out_channels=1))
    >>> grid = Domain.grid((9, 9), batch=4)
    >>> u = model.eval()(grid, torch.randn(4, 81, 1))
    >>> finer = model(grid, torch.randn(4, 81, 1), query=Domain.grid((17, 17), batch=4))
    >>> u.shape, finer.shape
    (torch.Size([4, 81, 1]), torch.Size([4, 289, 1]))
    """

    def __init__(self, config: ONOConfig, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        dim, timed = problem.dim, problem.timed
        # Times that enter g leave nothing that several times could share.
        self.queries_are_independent = config.query != "cross" and not (
            timed and config.time.to == "g"
        )
        width, hidden = config.width, round(config.width * config.ffn_ratio)
        place = {"coords": dim, "mesh": 2 * dim, "index": 1}[config.position]
        inputs = place + problem.in_channels

        if config.encoder == "shared":
            self.encoder = FFN(inputs, 2 * width, 2 * width)
        else:
            self.encoder_g = FFN(inputs, 2 * width, width)
            self.encoder_h = FFN(inputs, 2 * width, width)
        self.encoder_query = FFN(dim, 2 * width, width) if config.query == "cross" else None
        self.time = TimeEmbedding(width, config.time.scale) if timed else None

        self.lower = nn.ModuleList(
            NNBlock(_attention(width, config.lower), width, hidden) for _ in range(config.layers)
        )
        projection: nn.Module = FFN(width, hidden, problem.out_channels)
        if config.head == "linear":
            projection = nn.Linear(width, problem.out_channels)
        self.upper = nn.ModuleList()
        for layer in range(config.layers):
            last = config.block == "post" and layer == config.layers - 1
            attention = OrthogonalAttention(width, width, config.eigen)
            ffn = projection if last else FFN(width, hidden)
            self.upper.append(OrthogonalBlock(attention, ffn, width, config.block))
        self.head = (
            nn.Identity()
            if config.block == "post"
            else nn.Sequential(nn.LayerNorm(width), projection)
        )
        initialise(self)
        if config.eigen.norm == "ortho" and config.block == "pre":
            for attention in self.orthogonal_attentions():
                nn.init.orthogonal_(attention.w_q.weight)

    def forward(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        query: Domain | None = None,
        time: Float[Tensor, " batch"] | Float[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return the output function at the points of `domain`, or at those of `query`.

        With times of shape [batch time] the lower flow is evaluated once for all of them and the
        result is [batch time points out].
        """
        self.problem.refuse_other("ono", domain, values, time)
        if time is not None and time.ndim == 2 and self.config.time.to == "g":
            return each_time(self, domain, values, query, time)
        if self.config.query == "cross":
            return self._cross(domain, values, query or domain, time)
        output, seen = self.encode(domain, values, time=time)
        if query is None:
            return output
        return self.decode(seen, domain, values, query, time=time)

    def encode(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        time: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch ... out"], Seen]:
        """Run both flows at the input points; return the output and what queries need."""
        measure = self._measure(domain)
        g, h = self._lift(self._inputs(domain, values), time)
        seen: Seen = []
        for lower, upper in self._blocks():
            g, summary = lower(g, measure)  # Eq. 3
            h, told = upper(_beside(g, h), h, measure)  # Eqs. 4-6
            seen.append((summary, told))
        return self.head(h), seen

    def decode(
        self,
        seen: Seen,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        query: Domain,
        *,
        time: Tensor | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Evaluate the output at query points, each independent of the others.

        The inputs are carried to the queries and both flows continue there, reading in every
        layer what the input points left. Queries that are input points get the same output.
        """
        if self.config.position == "index":
            raise UnsupportedDomain(
                'a model with position="index" knows nodes by number and cannot be queried at '
                'other points; train it with position="coords" or "mesh"'
            )
        assert self.config.query != "cross"
        # Beside the coordinates, a place in the logical mesh is carried like a value.
        fields = torch.cat((self._place(domain)[..., self.problem.dim :], values), -1)
        carried = interpolate(domain, fields, query, self.config.query)
        g, h = self._lift(torch.cat((query.coords, carried), -1), time)
        for (lower, upper), (summary, told) in zip(self._blocks(), seen, strict=True):
            g = lower.read(g, summary)
            h = upper.read(_beside(g, h), h, told)
        output: Tensor = self.head(h)
        return output

    def _cross(
        self, domain: Domain, values: Tensor, query: Domain, time: Tensor | None
    ) -> Float[Tensor, "batch ... out"]:
        """Evaluate Eq. 20: the first layer carries h from X to Y, the others stay on Y.

        Eigenfunctions and covariance are shared between X and Y.
        """
        assert self.encoder_query is not None
        here, there = self._measure(domain), self._measure(query)
        g, h = self._lift(self._inputs(domain, values), time)
        g_y: Tensor = self.encoder_query(query.coords)
        h_y: Tensor | None = None
        for lower, upper in self._blocks():
            g, summary = lower(g, here)
            g_y = lower.read(g_y, summary)
            _, told = upper.attention(_beside(g, h), upper.norm_attention(h), here)
            if h_y is None:
                h_y = upper.read(_beside(g_y, h), None, told)
            else:
                h_y, _ = upper(_beside(g_y, h_y), h_y, there, told)
        output: Tensor = self.head(h_y)
        return output

    def observe(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        time: Tensor | None = None,
    ) -> None:
        """Add a batch to a calibration pass.

        The lower flow depends on no covariance, so one pass over the data serves every layer. Of
        times it sees only those that enter it.
        """
        if time is not None and time.ndim == 2:
            moments: list[Tensor | None] = [None]
            if self.config.time.to == "g":
                moments = list(time.unbind(1))
            for moment in moments:
                self.observe(domain, values, time=moment)
            return
        measure = self._measure(domain)
        g, _ = self._lift(self._inputs(domain, values), time)
        for lower, upper in self._blocks():
            g, _ = lower(g, measure)
            upper.attention.observe(g, measure)

    def settle(self) -> None:
        """End a calibration pass: fold every layer's covariance into a constant kernel."""
        for attention in self.orthogonal_attentions():
            attention.settle()

    def eigenfunctions(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        layer: int,
        time: Tensor | None = None,
    ) -> Float[Tensor, "batch points heads eigen"]:
        """Return the learned eigenfunctions ψ of one layer (Eq. 8)."""
        measure = self._measure(domain)
        g, _ = self._lift(self._inputs(domain, values), time)
        for index, (lower, upper) in enumerate(self._blocks()):
            g, _ = lower(g, measure)
            if index == layer:
                return upper.attention.eigenfunctions(g, measure)
        raise ShapeError(f"layer must be 0 to {self.config.layers - 1}, got {layer}")

    def orthogonal_attentions(self) -> Iterator[OrthogonalAttention]:
        """Iterate over the orthogonal attention of each layer."""
        for _, upper in self._blocks():
            yield upper.attention

    def _blocks(self) -> Iterator[tuple[NNBlock, OrthogonalBlock]]:
        lower = cast("list[NNBlock]", self.lower)
        return zip(lower, cast("list[OrthogonalBlock]", self.upper), strict=True)

    def _inputs(self, domain: Domain, values: Tensor) -> Float[Tensor, "batch points inputs"]:
        return torch.cat((self._place(domain), values), -1)

    def _lift(
        self, x: Float[Tensor, "batch points inputs"], time: Tensor | None
    ) -> tuple[Float[Tensor, "batch points width"], Float[Tensor, "batch ... points width"]]:
        """Return g⁰ and h¹ of the encoder E."""
        if self.config.encoder == "shared":
            g, h = self.encoder(x).chunk(2, -1)
        else:
            g, h = self.encoder_g(x), self.encoder_h(x)
        # Under autocast the residual streams stay in float32.
        g, h = at_least_float32(g), at_least_float32(h)
        if self.time is None or time is None:
            return g, h
        moment = self.time(time)[..., None, :]
        if self.config.time.to == "g":
            return g + moment, h
        return g, (h[:, None] if time.ndim == 2 else h) + moment

    def _place(self, domain: Domain) -> Float[Tensor, "batch points place"]:
        """Return what the network is told about where a point is."""
        coords = domain.coords
        if self.config.position == "coords":
            return coords

        def axis(nodes: int) -> Tensor:
            return torch.linspace(0, 1, nodes, device=coords.device, dtype=coords.dtype)

        if self.config.position == "index":
            return axis(domain.points)[:, None].expand(domain.batch, -1, -1)
        if domain.shape is None:
            raise UnsupportedDomain(
                'a model with position="mesh" needs a grid or a structured mesh, got scattered '
                'points; use position="coords"'
            )
        axes = [axis(nodes) for nodes in domain.shape]
        logical = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)
        # A surface in space has fewer axes than coordinates.
        logical = nn.functional.pad(logical, (0, self.problem.dim - len(axes)))
        return torch.cat((coords, logical.expand(domain.batch, -1, -1)), -1)

    def _measure(self, domain: Domain) -> Measure:
        choice = self.config.eigen.measure
        weights = domain.measure(quadrature=choice == "weights")
        if choice != "sum":
            return Measure(weights)
        if domain.mask is None:
            return Measure(weights, float(domain.points))
        return Measure(weights, domain.mask.sum(-1).to(domain.coords.dtype))


def _beside(g: Tensor, h: Tensor) -> Tensor:
    """Give g an axis for the times that h has and g does not."""
    return g[:, None] if h.ndim > g.ndim else g


def _attention(width: int, options: LowerOptions) -> Attention:
    match options.attention:
        case "efficient":
            return EfficientAttention(width, options.heads)
        case "linear":
            return LinearAttention(width, options.heads)
        case "galerkin":
            return GalerkinAttention(width, options.heads)
        case "softmax":
            return SoftmaxAttention(width, options.heads)
        case "nystrom":
            return NystromAttention(
                width,
                options.heads,
                landmarks=options.landmarks,
                iterations=options.pinv_iterations,
                index_convolution=options.index_convolution,
            )
