"""Normalised attention to several functions, linear in the points (GNOT, Hao et al., ICML 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.errors import RecipeError
from ono.nn.heads import same_head
from ono.nn.measure import Measure


class NormalisedAttention(nn.Module):
    """Average the values of every source by a kernel whose rows sum to one; add the query.

        q̃ = softmax(q), k̃ = softmax(k)                   over the channels of a head
        z = q̃ + Σ_l  q̃ (Σ_j w_j k̃_lj v_ljᵀ) / q̃ (Σ_j w_j k̃_lj)

    Sources may have any number of points, each its own measure. Self-attention is attention to
    one source, the points themselves.

    >>> attention = NormalisedAttention(8, heads=2, sources=2)
    >>> x, y, z = torch.randn(3, 50, 8), torch.randn(3, 20, 8), torch.randn(3, 7, 8)
    >>> attention(x, [y, z], [Measure(), Measure()]).shape
    torch.Size([3, 50, 8])
    """

    own_channels: Tensor

    def __init__(self, width: int, heads: int, sources: int = 1) -> None:
        super().__init__()
        if width % heads:
            raise RecipeError(
                f"model.width must be a multiple of model.heads, got {width} and {heads}"
            )
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.keys = nn.ModuleList(nn.Linear(width, width) for _ in range(sources))
        self.values = nn.ModuleList(nn.Linear(width, width) for _ in range(sources))
        self.out = nn.Linear(width, width)
        self.register_buffer("own_channels", same_head(heads, width, width), persistent=False)

    def forward(
        self,
        x: Float[Tensor, "batch queries width"],
        sources: Sequence[Tensor],
        measures: Sequence[Measure],
    ) -> Float[Tensor, "batch queries width"]:
        """Return what the sources tell the points of x."""
        q = self._softmax(self.query(x))
        mixed = q
        for key, value, y, measure in zip(self.keys, self.values, sources, measures, strict=True):
            k, v = self._softmax(key(y)), value(y)
            context = measure.inner(k, v) * self.own_channels
            total = measure.inner(k, torch.ones_like(v[..., :1])).mT
            row = self._split(q * total.to(q.dtype)).sum(-1, keepdim=True)
            mixed = mixed + (self._split(q @ context.to(q.dtype)) / row).flatten(-2)
        told: Tensor = self.out(mixed)
        return told

    def _softmax(self, x: Tensor) -> Tensor:
        return self._split(x).softmax(-1).flatten(-2)

    def _split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, -1))
        return heads
