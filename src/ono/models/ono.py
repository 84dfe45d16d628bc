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

from collections.abc import Callable, Iterator
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
from ono.nn.blocks import NNBlock, OrthogonalBlock, Unchanged
from ono.nn.embedding import Octaves, TimeEmbedding
from ono.nn.interpolation import interpolate
from ono.nn.measure import Measure
from ono.nn.mlp import FFN, Lift, Unrounded, initialise
from ono.nn.orthogonal_attention import Basis, OrthogonalAttention, Told, bases
from ono.nn.surroundings import Surroundings
from ono.problem import Problem

Flows = Callable[["ONO", Tensor, "Tensor | None", Measure], Tensor]
"""Another way from inputs and times to the output, for training."""

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
        known = problem.in_channels + config.surroundings
        inputs = place * (1 + 2 * config.octaves) + known
        self.octaves = Octaves(config.octaves)
        lower_width = config.lower.width or width
        lower_hidden = round(lower_width * config.ffn_ratio)

        if config.encoder == "shared":
            self.encoder = Lift(inputs, 2 * width, lower_width + width)
        else:
            self.encoder_g = Lift(inputs, 2 * lower_width, lower_width)
            self.encoder_h = Lift(inputs, 2 * width, width)
        self.encoder_query = (
            Lift(dim, 2 * lower_width, lower_width) if config.query == "cross" else None
        )
        timed_width = width if config.time.to == "h" else lower_width
        self.time = TimeEmbedding(timed_width, config.time.scale) if timed else None

        self.lower = nn.ModuleList(
            NNBlock(_attention(lower_width, config.lower), lower_width, lower_hidden)
            if moves
            else Unchanged()
            for moves in config.lower_moves()
        )
        projection: nn.Module = FFN(width, hidden, problem.out_channels)
        if config.head == "linear":
            projection = nn.Linear(width, problem.out_channels)
        self.upper = nn.ModuleList()
        for layer in range(config.layers):
            last = config.block == "post" and layer == config.layers - 1
            attention = OrthogonalAttention(width, lower_width, config.eigen)
            ffn = projection if last else FFN(width, hidden)
            self.upper.append(OrthogonalBlock(attention, ffn, width, config.block))
        self.head = (
            nn.Identity() if config.block == "post" else Unrounded(nn.LayerNorm(width), projection)
        )
        self.flows: Flows | None = None
        self.folded_flows: Flows | None = None
        initialise(self)
        self.surroundings: Surroundings | None = None
        if config.surroundings:
            self.surroundings = Surroundings(problem, config.surroundings)
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
        flows = self.flows if self.training else self._folded_flows()
        if flows is not None and query is None and values.is_cuda:
            return flows(self, self._inputs(domain, values), time, self._measure(domain))
        output, seen = self.encode(domain, values, time=time)
        if query is None:
            return output
        return self.decode(seen, domain, values, query, time=time)

    def _folded_flows(self) -> Flows | None:
        """Return the fused flows of evaluation, if they are wanted and nobody wants gradients."""
        if self.folded_flows is None or torch.is_grad_enabled():
            return None
        folded = all(attention.is_folded for attention in self.orthogonal_attentions())
        return self.folded_flows if folded else None

    def encode(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        time: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch ... out"], Seen]:
        """Run both flows at the input points; return the output and what queries need."""
        measure = self._measure(domain)
        g, h = self.lift(self._inputs(domain, values), time)
        flow, summaries = self._flow(g, measure)  # Eq. 3
        told = []
        for upper, basis in zip(self._upper(), self._bases(flow, measure), strict=True):
            h, left = upper(basis, h, measure)  # Eqs. 5, 6
            told.append(left)
        seen = list(zip(summaries, told, strict=True))
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
        values = self.with_surroundings(domain, values)
        fields = torch.cat((self._place(domain)[..., self.problem.dim :], values), -1)
        carried = interpolate(domain, fields, query, self.config.query)
        logical = fields.shape[-1] - values.shape[-1]
        place = torch.cat((query.coords, carried[..., :logical]), -1)
        told = torch.cat((self.octaves(place), carried[..., logical:]), -1)
        g, h = self.lift(told, time)
        for (lower, upper), (summary, left) in zip(self._blocks(), seen, strict=True):
            g = lower.read(g, summary)
            h = upper.read(g, h, left)
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
        g, h = self.lift(self._inputs(domain, values), time)
        g_y: Tensor = self.encoder_query(query.coords)
        h_y: Tensor | None = None
        flow, summaries = self._flow(g, here)
        bases = self._bases(flow, here)
        for (lower, upper), summary, basis in zip(self._blocks(), summaries, bases, strict=True):
            g_y = lower.read(g_y, summary)
            if h_y is None:
                _, told = upper.attention(basis, upper.norm_attention(h), here)
                h_y = upper.read(g_y, None, told)
            else:
                h_y, _ = upper(upper.attention.elsewhere(g_y, basis), h_y, there)
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
        g, _ = self.lift(self._inputs(domain, values), time)
        flow, _ = self._flow(g, measure)
        for attention, g in zip(self.orthogonal_attentions(), flow, strict=True):
            attention.observe(g, measure)

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
        g, _ = self.lift(self._inputs(domain, values), time)
        if not 0 <= layer < self.config.layers:
            raise ShapeError(f"layer must be 0 to {self.config.layers - 1}, got {layer}")
        flow, _ = self._flow(g, measure)
        return self._upper()[layer].attention.eigenfunctions(flow[layer], measure)

    def orthogonal_attentions(self) -> Iterator[OrthogonalAttention]:
        """Iterate over the orthogonal attention of each layer."""
        for upper in self._upper():
            yield upper.attention

    def _upper(self) -> list[OrthogonalBlock]:
        return cast("list[OrthogonalBlock]", list(self.upper))

    def _blocks(self) -> Iterator[tuple[NNBlock, OrthogonalBlock]]:
        return zip(cast("list[NNBlock]", self.lower), self._upper(), strict=True)

    def _flow(self, g: Tensor, measure: Measure) -> tuple[list[Tensor], list[Summary]]:
        """Return g and its summary after every NN block; the lower flow runs by itself (Eq. 3)."""
        flow, summaries = [], []
        for lower in cast("list[NNBlock]", self.lower):
            g, summary = lower(g, measure)
            flow.append(g)
            summaries.append(summary)
        return flow, summaries

    def _bases(self, flow: list[Tensor], measure: Measure) -> list[Basis]:
        """Return the eigenfunctions of every layer, unwhitened, with their mixing (Eqs. 4, 7-9)."""
        return bases(list(self.orthogonal_attentions()), flow, measure)

    def with_surroundings(
        self, domain: Domain, values: Float[Tensor, "batch points channels"]
    ) -> Float[Tensor, "batch points known"]:
        """Return the values and, if the network is told, what is around them on their mesh."""
        if self.surroundings is None:
            return values
        return torch.cat((values, self.surroundings(domain, values)), -1)

    def _inputs(self, domain: Domain, values: Tensor) -> Float[Tensor, "batch points inputs"]:
        known = self.with_surroundings(domain, values)
        return torch.cat((self.octaves(self._place(domain)), known), -1)

    def lift(
        self, x: Float[Tensor, "batch points inputs"], time: Tensor | None
    ) -> tuple[Float[Tensor, "batch points lower"], Float[Tensor, "batch ... points width"]]:
        """Return g⁰ and h¹ of the encoder E."""
        if self.config.encoder == "shared":
            both = self.encoder(x)
            g, h = both.tensor_split((both.shape[-1] - self.config.width,), -1)
        else:
            g, h = self.encoder_g(x), self.encoder_h(x)
        return self.at_times(g, h, time)

    def at_times(
        self,
        g: Float[Tensor, "batch points lower"],
        h: Float[Tensor, "batch points width"],
        time: Tensor | None,
    ) -> tuple[Float[Tensor, "batch points lower"], Float[Tensor, "batch ... points width"]]:
        """Return g⁰ and h¹ with what the times add to one of them."""
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
            if domain.mask is None:
                return axis(domain.points)[:, None].expand(domain.batch, -1, -1)
            # Real points only, so that padding changes no number.
            before = (domain.mask.cumsum(-1) - 1).to(coords.dtype)
            return (before / before[:, -1:].clamp_min(1))[..., None]
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
        if domain.mask is None:
            # Given weights may be zero in a cloud; nodes of a mesh count whatever theirs are.
            whole = weights is None or domain.shape is not None
            total = float(domain.points) if choice == "sum" else 1.0
            return Measure(weights, total, padded=not whole)
        if choice != "sum":
            return Measure(weights)
        return Measure(weights, domain.mask.sum(-1).to(domain.coords.dtype))


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
