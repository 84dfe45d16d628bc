"""The General Neural Operator Transformer (Hao et al.; ICML 2023).

The trunk x starts from the places where the output is wanted. Every input function z_l, known at
points of its own, is embedded once; in each block x attends to them, then to itself.

    x = trunk(place), z_l = branch_l(place, f_l)
    x = x + cross-attention(LN x, LN z_1 … LN z_L)
    x = x + LN(Σ_i gate_i(place) expert_i(x))         geometric gating
    x = x + self-attention(LN x)
    x = x + LN(Σ_i gate_i(place) expert'_i(x))
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.models.each_time import each_time
from ono.models.gnot_config import GNOTConfig
from ono.nn.embedding import TimeEmbedding
from ono.nn.experts import Experts, GeometricGate
from ono.nn.measure import Measure, at_least_float32
from ono.nn.normalised_attention import NormalisedAttention
from ono.nn.residual_mlp import ResidualMLP
from ono.problem import Problem

_TIME_SCALE = 100.0
"""Multiplies times in [0, 1], so that the features of different times differ."""


class GNOT(nn.Module):
    """Map a function on points to a function on the same or other points.

    The channels of the values, with their coordinates, are one input function; without channels
    the geometry itself is. At query points the trunk starts there and nothing is interpolated;
    the queries attend to each other, so what is asked elsewhere changes the answer a little.

    >>> model = GNOT(GNOTConfig(width=16), Problem(dim=2, in_channels=1, out_channels=1))
    >>> cloud, query = Domain(torch.rand(4, 30, 2)), Domain(torch.rand(4, 50, 2))
    >>> model(cloud, torch.randn(4, 30, 1), query=query).shape
    torch.Size([4, 50, 1])
    """

    def __init__(self, config: GNOTConfig, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        width, layers, dim = config.width, config.mlp_layers, problem.dim
        separate = config.inputs == "separate" and problem.in_channels > 0
        sizes = [1] * problem.in_channels if separate else [problem.in_channels]
        self.sizes = sizes
        self.trunk = ResidualMLP(dim, width, width, layers)
        self.branches = nn.ModuleList(ResidualMLP(dim + n, width, width, layers) for n in sizes)
        self.time = TimeEmbedding(width, _TIME_SCALE) if problem.timed else None
        self.blocks = nn.ModuleList(
            GNOTBlock(config, dim, len(sizes)) for _ in range(config.layers)
        )
        self.head = ResidualMLP(width, width, problem.out_channels, layers)

    def forward(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        query: Domain | None = None,
        time: Float[Tensor, " batch"] | Float[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return the output function at the points of `domain`, or at those of `query`."""
        self.problem.refuse_other("gnot", domain, values, time)
        if time is not None and time.ndim == 2:
            return each_time(self, domain, values, query, time)
        where = query or domain
        x = at_least_float32(self.trunk(where.coords))
        if self.time is not None and time is not None:
            x = x + self.time(time)[:, None]
        z = [
            branch(torch.cat((domain.coords, part), -1))
            for branch, part in zip(self.branches, values.split(self.sizes, -1), strict=True)
        ]
        here, there = self._measure(domain), self._measure(where)
        for block in self.blocks:
            x = block(x, z, where.coords, here, there)
        output: Tensor = self.head(x)
        return output

    def _measure(self, domain: Domain) -> Measure:
        # The publication counts every point alike; weights are an option.
        return Measure(domain.measure(quadrature=self.config.measure == "weights"))


class GNOTBlock(nn.Module):
    """Attention to the input functions and among the points, each followed by experts."""

    def __init__(self, config: GNOTConfig, dim: int, inputs: int) -> None:
        super().__init__()
        width, heads, experts = config.width, config.heads, config.experts
        hidden = round(config.inner_ratio * width)
        self.gate = GeometricGate(dim, hidden, experts)
        self.norm_cross = nn.LayerNorm(width)
        self.norm_inputs = nn.ModuleList(nn.LayerNorm(width) for _ in range(inputs))
        self.cross_attention = NormalisedAttention(width, heads, inputs)
        self.cross_experts = Experts(width, hidden, experts)
        self.norm_cross_experts = nn.LayerNorm(width)
        self.norm_self = nn.LayerNorm(width)
        self.self_attention = NormalisedAttention(width, heads)
        self.self_experts = Experts(width, hidden, experts)
        self.norm_self_experts = nn.LayerNorm(width)

    def forward(
        self,
        x: Float[Tensor, "batch queries width"],
        z: list[Tensor],
        coords: Float[Tensor, "batch queries dim"],
        here: Measure,
        there: Measure,
    ) -> Float[Tensor, "batch queries width"]:
        """Return the next x; `here` measures the input points, `there` those of x."""
        shares = self.gate(coords)
        inputs = [norm(part) for norm, part in zip(self.norm_inputs, z, strict=True)]
        x = x + self.cross_attention(self.norm_cross(x), inputs, [here] * len(inputs))
        x = x + self.norm_cross_experts(self.cross_experts(x, shares))
        own = self.norm_self(x)
        x = x + self.self_attention(own, [own], [there])
        moved: Tensor = x + self.norm_self_experts(self.self_experts(x, shares))
        return moved
