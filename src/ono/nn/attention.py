"""Attention over the points of a sample, for the blocks of the lower flow.

Every form splits into a summary of the source points and a reading of it at other points, so
that the flow can be continued at query points that do not influence each other. The measure of
the domain enters each sum over points: quadrature weights are respected, padding weighs nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ono.errors import RecipeError, UnsupportedDomain
from ono.nn.between_landmarks import between_landmarks
from ono.nn.heads import same_head
from ono.nn.landmark_attention import landmark_attention
from ono.nn.measure import Measure, along_points, at_least_float32, sum_over_points
from ono.nn.run_means import run_means
from ono.nn.softmax_attention import softmax_attention

Points: TypeAlias = Float[Tensor, "batch points width"]
Queries: TypeAlias = Float[Tensor, "batch queries width"]
Summary: TypeAlias = tuple[Tensor, ...]
"""What the source points tell: tensors, the first axis of each is the batch."""


class Attention(nn.Module, ABC):
    """Project to queries, keys and values; summarise the sources; mix; project back."""

    order_dependent: ClassVar[bool] = False
    """Whether the result depends on how the points are numbered."""

    own_channels: Tensor

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise RecipeError(
                "model.width, or model.lower.width if given, must be a multiple of "
                f"model.lower.heads, got {width} and {heads}"
            )
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.register_buffer("own_channels", same_head(heads, width, width), persistent=False)

    @abstractmethod
    def summary(self, q: Points, k: Points, v: Points, measure: Measure) -> Summary:
        """Condense the source points."""

    @abstractmethod
    def mix(self, q: Queries, summary: Summary) -> Queries:
        """Read the summary at the queries."""

    def forward(self, x: Points, measure: Measure) -> tuple[Points, Summary]:
        """Return the attention of the points to each other, and their summary."""
        q, k, v = self.qkv(x).chunk(3, -1)
        summary = self.summary(q, k, v, measure)
        return self.out(self.mix(q, summary)), summary

    def read(self, x: Queries, summary: Summary) -> Queries:
        """Return the attention of other points to the summarised ones."""
        attended: Tensor = self.out(self.mix(F.linear(x, self.qkv.weight[: x.shape[-1]]), summary))
        return attended

    def split(self, x: Points) -> Float[Tensor, "batch points heads share"]:
        """Show the channels of each head on an axis of their own."""
        heads: Tensor = x.unflatten(-1, (self.heads, -1))
        return heads


class EfficientAttention(Attention):
    """The released "linear" attention: softmax of q over channels, of k over points."""

    def summary(self, q: Points, k: Points, v: Points, measure: Measure) -> Summary:
        """Return the average of v under each channel of k, within heads."""
        k = at_least_float32(k)
        if measure.weights is not None:
            k = k + along_points(measure.weights, k).log().to(k.dtype)
        # A softmax over the points, divided after the product: over a long axis that is not the
        # last one, the fused softmax of torch is several times slower.
        share = (k - k.amax(-2, keepdim=True).detach()).exp()
        total = share.sum(-2)[..., None]
        return (sum_over_points(share.to(v.dtype), v) / total * self.own_channels,)

    def mix(self, q: Queries, summary: Summary) -> Queries:
        """Return softmax(q) · context / sqrt(share)."""
        shared = self.split(q)
        context = summary[0] / math.sqrt(shared.shape[-1])
        return shared.softmax(-1).flatten(-2) @ context.to(q.dtype)


class LinearAttention(Attention):
    """Kernel attention of Katharopoulos et al.: φ(q) Σφ(k)vᵀ / φ(q) Σφ(k), φ = elu + 1."""

    def summary(self, q: Points, k: Points, v: Points, measure: Measure) -> Summary:
        """Return Σφ(k)vᵀ and Σφ(k), within heads."""
        phi = F.elu(k) + 1
        return (
            measure.inner(phi, v) * self.own_channels,
            measure.inner(phi, torch.ones_like(v[..., :1])) * self.own_channels,
        )

    def mix(self, q: Queries, summary: Summary) -> Queries:
        """Return the φ-weighted average of v."""
        phi = F.elu(q) + 1
        context, normaliser = (part.to(phi.dtype) for part in summary)
        return phi @ context / (phi @ normaliser)


class GalerkinAttention(Attention):
    """Attention of Cao without softmax: q (kᵀv)/M with layer norms on k and v."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.norm_k = nn.LayerNorm(width // heads)
        self.norm_v = nn.LayerNorm(width // heads)

    def summary(self, q: Points, k: Points, v: Points, measure: Measure) -> Summary:
        """Return the inner products of the columns of k and v, within heads."""
        k, v = self.norm_k(self.split(k)).flatten(-2), self.norm_v(self.split(v)).flatten(-2)
        return (measure.inner(k, v) * self.own_channels,)

    def mix(self, q: Queries, summary: Summary) -> Queries:
        """Return q · context."""
        return q @ summary[0].to(q.dtype)


class SoftmaxAttention(Attention):
    """Full attention: every point looks at every other. Quadratic in the points."""

    def summary(self, q: Points, k: Points, v: Points, measure: Measure) -> Summary:
        """Return keys, values and, where points differ in weight, the logarithm of it."""
        k, v = (self.split(x).transpose(1, 2) for x in (k, v))
        if measure.weights is None:
            return k, v
        return k, v, measure.weights[:, None, None].log()

    def mix(self, q: Queries, summary: Summary) -> Queries:
        """Return softmax(q kᵀ / sqrt(share) + log w) v."""
        k, v, *bias = summary
        q = self.split(q).transpose(1, 2)
        mixed = softmax_attention(q, k, v, bias[0] if bias else None)
        return mixed.transpose(1, 2).flatten(2)


class NystromAttention(Attention):
    """Softmax attention through landmarks (Xiong et al.), as two attentions with few of them.

    softmax(q k̃ᵀ) · pinv(softmax(q̃ k̃ᵀ)) · softmax(q̃ kᵀ) v, where q̃ and k̃ are means of q and k
    over runs of consecutive points: the result depends on the numbering of the points, but not on
    padding, and never on the other samples of the batch. The index convolution of the released
    code is an option; with it the outputs cannot be queried elsewhere.
    """

    order_dependent: ClassVar[bool] = True
    taps: ClassVar[int] = 33

    def __init__(
        self, width: int, heads: int, *, landmarks: int, iterations: int, index_convolution: bool
    ) -> None:
        super().__init__(width, heads)
        self.landmarks = landmarks
        self.iterations = iterations
        self.kernels = True
        """Whether kernels for few landmarks are used where a GPU has them."""
        self.convolution = (
            nn.Conv2d(
                heads, heads, (self.taps, 1), padding=(self.taps // 2, 0), groups=heads, bias=False
            )
            if index_convolution
            else None
        )

    def summary(self, q: Points, k: Points, v: Points, measure: Measure) -> Summary:
        """Return k̃, pinv(softmax(q̃ k̃ᵀ)) softmax(q̃ kᵀ) v and what hides unused landmarks."""
        *marks, used = self._landmarks(q, k, measure)
        k, v, q_mark, k_mark = (self.split(x).transpose(1, 2) for x in (k, v, *marks))
        bias = None if measure.weights is None else measure.weights[:, None, None].log().to(k.dtype)
        seen = landmark_attention(q_mark, k, v, bias, kernels=self.kernels)
        told = between_landmarks(q_mark, k_mark, seen, used, self.iterations, kernels=self.kernels)
        summary: Summary = (k_mark, told)
        if used is not None and measure.weights is not None:
            v = v * (along_points(measure.weights, v) > 0)
            hidden = torch.zeros_like(used, dtype=k.dtype).masked_fill(~used, -torch.inf)
            summary = (k_mark, told, hidden[:, None, None])
        return summary if self.convolution is None else (*summary, v)

    def mix(self, q: Queries, summary: Summary) -> Queries:
        """Return softmax(q k̃ᵀ) · told."""
        k_mark, told, *rest = summary
        q = self.split(q).transpose(1, 2)
        v = rest.pop() if self.convolution is not None else None
        mixed = landmark_attention(q, k_mark, told, rest[0] if rest else None, kernels=self.kernels)
        if self.convolution is not None and v is not None:
            mixed = mixed + self.convolution(v)
        return mixed.transpose(1, 2).flatten(2)

    def read(self, x: Queries, summary: Summary) -> Queries:
        """Return the attention of other points, unless the index convolution ties it to these."""
        if self.convolution is not None:
            raise UnsupportedDomain(
                "the index convolution of nystrom attention is defined only at the input points; "
                "set model.lower.index_convolution=false to query other points"
            )
        return super().read(x, summary)

    def _landmarks(
        self, q: Points, k: Points, measure: Measure
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the means of q and k over runs, all heads together, and which of them are used."""
        points = q.shape[-2]
        if measure.weights is None or not measure.padded:
            run = -(-points // self.landmarks)
            return run_means(q, run), run_means(k, run), None
        real = measure.weights > 0
        run_of = -(-real.sum(-1, keepdim=True) // self.landmarks)
        owner = (real.cumsum(-1) - 1).clamp_min(0) // run_of
        marks = torch.arange(min(self.landmarks, points), device=q.device)
        members = (owner[..., None] == marks) & real[..., None]
        counted = members.sum(1)
        with torch.autocast(q.device.type, enabled=False):
            wide_q, wide_k = map(at_least_float32, (q, k))
            members = members.to(wide_q.dtype)
            q_mark, k_mark = (
                sum_over_points(members, wide) / counted.clamp_min(1)[..., None]
                for wide in (wide_q, wide_k)
            )
        return q_mark.to(q.dtype), k_mark.to(k.dtype), counted > 0
