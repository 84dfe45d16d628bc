"""Transolver (Wu, Luo, Wang, Wang, Long; ICML 2024).

x⁰ = MLP(g, u) + placeholder
x̂  = x + PhysicsAttention(LN x)           Eq. 5
x  = x̂ + FFN(LN x̂)
output = Linear(LN x)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import ShapeError
from ono.models.transolver_config import TransolverConfig
from ono.nn.embedding import TimeEmbedding
from ono.nn.interpolation import interpolate
from ono.nn.measure import Measure, at_least_float32
from ono.nn.mlp import FFN, Lift, Unrounded, initialise
from ono.nn.physics_attention import PhysicsAttention, Tokens
from ono.problem import Problem

Seen = tuple[Tensor, list[Tensor]]
"""The output at the input points, and the tokens of each layer for every sample and time."""


class TransolverBlock(nn.Module):
    """Physics attention and FFN, each behind a norm."""

    def __init__(self, attention: PhysicsAttention, width: int, hidden: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = attention
        self.norm_ffn = nn.LayerNorm(width)
        self.ffn = FFN(width, hidden)

    def forward(
        self,
        x: Float[Tensor, "batch points width"],
        measure: Measure,
        shape: tuple[int, ...] | None,
        mask: Bool[Tensor, "batch points"] | None,
    ) -> tuple[Float[Tensor, "batch points width"], Tokens]:
        """Return the next x and the tokens that query points read."""
        attended, tokens = self.attention(self.norm_attention(x), measure, shape, mask)
        return self._finish(x + attended), tokens

    def read(
        self, x: Float[Tensor, "batch queries width"], tokens: Tokens
    ) -> Float[Tensor, "batch queries width"]:
        """Return the next x at query points."""
        return self._finish(x + self.attention.read(self.norm_attention(x), tokens))

    def _finish(self, x: Tensor) -> Tensor:
        moved: Tensor = x + self.ffn(self.norm_ffn(x))
        return moved


class Transolver(nn.Module):
    """Map a function on points to a function on the same or other points.

    On a grid or a structured mesh the projections are convolutions; the mesh may have any size,
    and at query points the output is interpolated linearly. On scattered points, or with
    convolution=false, the inputs are carried to the queries and the flow continues there, reading
    in every layer the tokens of the input points.

    >>> from ono.domain import Domain
    >>> problem = Problem.grid((9, 9), in_channels=1, out_channels=1)
    >>> model = Transolver(TransolverConfig(width=16, layers=2, slices=4), problem)
    >>> model(Domain.grid((12, 7), batch=4), torch.randn(4, 84, 1)).shape
    torch.Size([4, 84, 1])
    """

    references: Tensor
    queries_are_independent = True

    def __init__(self, config: TransolverConfig, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        width, hidden = config.width, round(config.width * config.ffn_ratio)
        on_mesh = config.convolution and problem.shape is not None
        self.axes = len(problem.shape or ()) if on_mesh else None

        nodes = [torch.linspace(0, 1, config.reference)] * problem.dim
        grid = torch.stack(torch.meshgrid(*nodes, indexing="ij"), -1).flatten(0, -2)
        self.register_buffer("references", grid, persistent=False)
        place = len(grid) if config.position == "distances" else problem.dim
        self.lift = Lift(place + problem.in_channels, 2 * width, width)
        # Released for tasks without input functions; added always, so that it is always trained.
        self.placeholder = nn.Parameter(torch.rand(width) / width)
        self.time = TimeEmbedding(width, config.time_scale) if problem.timed else None
        self.blocks = nn.ModuleList(
            TransolverBlock(
                PhysicsAttention(width, config.heads, config.slices, self.axes), width, hidden
            )
            for _ in range(config.layers)
        )
        self.head = Unrounded(nn.LayerNorm(width), nn.Linear(width, problem.out_channels))
        initialise(self)
        # The released code means to start slices apart, but then overwrites this.
        for block in self._blocks():
            nn.init.orthogonal_(block.attention.slice.weight)

    def forward(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        query: Domain | None = None,
        time: Float[Tensor, " batch"] | Float[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return the output function at the points of `domain`, or at those of `query`.

        With times of shape [batch time] the result is [batch time points out].
        """
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
        """Return the output at the input points and what queries need."""
        self.problem.refuse_other("transolver", domain, values, time)
        shape = self._shape(domain)
        x = self._lift(domain.coords, values, time)
        if time is not None and time.ndim == 2:
            domain = domain.repeat(time.shape[1])
        # Every point counts alike in the publication; weights are an option.
        measure = Measure(domain.measure(quadrature=self.config.measure == "weights"))
        tokens = []
        for block in self._blocks():
            x, told = block(x, measure, shape, domain.mask)
            tokens.append(told)
        output = _apart(self.head(x), time)
        return output, (output, tokens)

    def decode(
        self,
        seen: Seen,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        query: Domain,
        *,
        time: Tensor | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Evaluate the output at query points, each independent of the others."""
        output, tokens = seen
        if self.axes is not None:
            if output.ndim == 3:
                return interpolate(domain, output, query, "linear")
            flat = output.transpose(1, 2).flatten(2)  # the times beside the channels
            there: Tensor = interpolate(domain, flat, query, "linear")
            apart: Tensor = there.unflatten(2, (output.shape[1], -1)).transpose(1, 2)
            return apart
        carried = interpolate(domain, values, query, self.config.query)
        x = self._lift(query.coords, carried, time)
        for block, told in zip(self._blocks(), tokens, strict=True):
            x = block.read(x, told)
        return _apart(self.head(x), time)

    def _lift(
        self,
        coords: Float[Tensor, "batch points dim"],
        values: Float[Tensor, "batch points channels"],
        time: Tensor | None,
    ) -> Float[Tensor, "samples points width"]:
        """Return x⁰; with several times every one of them is a sample of its own."""
        place = coords
        if self.config.position == "distances":
            place = torch.cdist(
                coords,
                self.references.to(coords.dtype).expand(len(coords), -1, -1),
                compute_mode="donot_use_mm_for_euclid_dist",
            )
        x: Tensor = self.lift(torch.cat((place, values), -1))
        x = at_least_float32(x) + self.placeholder
        if self.time is None or time is None:
            return x
        moment: Tensor = self.time(time)[..., None, :]
        return x + moment if time.ndim == 1 else (x[:, None] + moment).flatten(0, 1)

    def _shape(self, domain: Domain) -> tuple[int, ...] | None:
        if self.axes is None:
            return None
        shape = self.problem.shape_of("transolver", domain)
        if len(shape) != self.axes:
            raise ShapeError(
                f"this transolver was built for a mesh of {self.axes} axes, got {len(shape)}: "
                f"{shape}"
            )
        return shape

    def _blocks(self) -> Iterator[TransolverBlock]:
        return iter(cast("list[TransolverBlock]", self.blocks))


def _apart(output: Tensor, time: Tensor | None) -> Tensor:
    """Give several times an axis of their own again."""
    if time is None or time.ndim == 1:
        return output
    parts: Tensor = output.unflatten(0, (-1, time.shape[1]))
    return parts
