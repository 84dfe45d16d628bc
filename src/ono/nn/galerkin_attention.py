"""Galerkin attention as Cao has it: every head sees where the points are (NeurIPS 2021).

The coordinates stand beside the channels of q, k and v in every head, so the trial and test
functions of the projection always span the linear functions. `nn.attention` has the plain form.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ono.errors import RecipeError
from ono.nn.heads import same_head
from ono.nn.measure import Measure, at_least_float32

Context: TypeAlias = Float[Tensor, "batch placed placed"]
"""The inner products of keys and values, zero between heads: all that other points need."""


class CoordinateGalerkinAttention(nn.Module):
    """Return q (kᵀv)/M without softmax, with coordinates in q, k and v.

    k and v are normalised within each head, or not at all where `eps` is None.

    >>> attention = CoordinateGalerkinAttention(8, heads=2, dim=2, eps=1e-5)
    >>> attended, context = attention(torch.randn(3, 50, 8), torch.rand(3, 50, 2), Measure())
    >>> attended.shape, context.shape
    (torch.Size([3, 50, 8]), torch.Size([3, 12, 12]))
    """

    own_channels: Tensor

    def __init__(self, width: int, heads: int, dim: int, eps: float | None) -> None:
        super().__init__()
        if width % heads:
            raise RecipeError(
                f"model.width must be a multiple of model.heads, got {width} and {heads}"
            )
        self.heads = heads
        placed = width + heads * dim
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm_k: nn.Module = nn.Identity() if eps is None else HeadNorm(width, heads, eps)
        self.norm_v: nn.Module = nn.Identity() if eps is None else HeadNorm(width, heads, eps)
        self.out = nn.Linear(placed, width)
        self.register_buffer("own_channels", same_head(heads, placed, placed), persistent=False)
        for projection in (self.query, self.key, self.value):
            _start_near_identity(projection)

    def forward(
        self,
        x: Float[Tensor, "batch points width"],
        coords: Float[Tensor, "batch points dim"],
        measure: Measure,
    ) -> tuple[Float[Tensor, "batch points width"], Context]:
        """Return the attention of the points to each other, and what other points need."""
        k = self._place(self.norm_k(self.key(x)), coords)
        v = self._place(self.norm_v(self.value(x)), coords)
        context = measure.inner(k, v) * self.own_channels
        return self.read(x, coords, context), context

    def read(
        self,
        x: Float[Tensor, "batch queries width"],
        coords: Float[Tensor, "batch queries dim"],
        context: Context,
    ) -> Float[Tensor, "batch queries width"]:
        """Return the attention of any points to those of the context."""
        q = at_least_float32(self._place(self.query(x), coords))
        with torch.autocast(q.device.type, enabled=False):  # which would round the coordinates
            mixed = q @ context
        attended: Tensor = self.out(mixed)
        return attended

    def _place(
        self, x: Float[Tensor, "batch points width"], coords: Float[Tensor, "batch points dim"]
    ) -> Float[Tensor, "batch points placed"]:
        """Put the coordinates before the channels of every head."""
        heads = x.unflatten(-1, (self.heads, -1))
        place = coords[..., None, :].expand(-1, -1, self.heads, -1)
        return torch.cat((place, heads), -1).flatten(-2)


class HeadNorm(nn.Module):
    """A layer norm of each head's channels, with scales and shifts of its own.

    >>> HeadNorm(4, heads=2, eps=1e-7)(torch.tensor([[1.0, 3.0, 10.0, 30.0]])).round().tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """

    def __init__(self, width: int, heads: int, eps: float) -> None:
        super().__init__()
        self.heads, self.eps = heads, eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Return the normalised channels."""
        split = x.unflatten(-1, (self.heads, -1))
        normal = F.layer_norm(split, split.shape[-1:], eps=self.eps).flatten(-2)
        return normal * self.weight + self.bias


def _start_near_identity(projection: nn.Linear) -> None:
    """Start at 1e-2 (I + Xavier): with a large start the products of three layers run away."""
    nn.init.xavier_uniform_(projection.weight, gain=1e-2)
    nn.init.zeros_(projection.bias)
    with torch.no_grad():
        projection.weight += 1e-2 * torch.eye(len(projection.weight))
