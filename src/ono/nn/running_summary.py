"""The summary that attention makes of its source points, from points that come in chunks."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ono.errors import UnsupportedDomain
from ono.nn.attention import (
    Attention,
    EfficientAttention,
    GalerkinAttention,
    LinearAttention,
    Summary,
)
from ono.nn.measure import Measure, along_points, at_least_float32

STREAMED = (EfficientAttention, LinearAttention, GalerkinAttention)
"""Attentions whose summary has a size that does not depend on the number of points."""


class RunningSummary:
    """Add chunk after chunk; the weights of all chunks together sum to one.

    Inner products add up by themselves. Averages under a softmax over points are weighted by what
    the chunks contribute to its denominator, in logarithms, so that nothing overflows.
    """

    def __init__(self, attention: Attention) -> None:
        if not isinstance(attention, STREAMED):
            raise UnsupportedDomain(
                f"{type(attention).__name__} needs all points at once and cannot take them in "
                "chunks; train with model.lower.attention=efficient, linear or galerkin"
            )
        self.attention = attention
        self.parts: Summary | None = None
        self.weight: Tensor | None = None

    def add(self, x: Float[Tensor, "batch points width"], measure: Measure) -> None:
        """Take in the points of a chunk."""
        k, v = F.linear(x, self.attention.qkv.weight[x.shape[-1] :]).chunk(2, -1)
        parts = self.attention.summary(k, k, v, measure)
        if isinstance(self.attention, EfficientAttention):
            self._average(parts[0], _log_weight(k, measure))
        elif self.parts is None:
            self.parts = parts
        else:
            self.parts = tuple(old + new for old, new in zip(self.parts, parts, strict=True))

    def _average(self, part: Tensor, weight: Float[Tensor, "batch width one"]) -> None:
        part = part.nan_to_num(0)  # a chunk of nothing but padding averages nothing
        if self.parts is None or self.weight is None:
            self.parts, self.weight = (part,), weight
            return
        total = torch.logaddexp(self.weight, weight)
        old, new = ((w - total).exp().nan_to_num(0) for w in (self.weight, weight))
        self.parts, self.weight = (old * self.parts[0] + new * part,), total

    def result(self) -> Summary:
        """Return the summary of all points so far."""
        assert self.parts is not None
        return self.parts


def _log_weight(
    k: Float[Tensor, "batch points width"], measure: Measure
) -> Float[Tensor, "batch width one"]:
    """Return the logarithm of a chunk's share of the denominator, for each channel of k."""
    k = at_least_float32(k)
    if measure.weights is not None:
        k = k + along_points(measure.weights, k).log().to(k.dtype)
    return k.logsumexp(-2)[..., None]
