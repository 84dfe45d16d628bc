"""Attention among slices of the domain instead of among its points (Wu et al., ICML 2024).

Every point belongs softly to G slices. A slice becomes one token, the tokens attend to each
other, and each point takes back a mixture of them by the weights with which it gave:

    w  = softmax_G(x w_slice / τ)             slice
    z  = Σ w f / Σ w                          one token a slice, a mean over the domain
    z' = softmax(q kᵀ / sqrt(d)) v            attend, q, k, v from z
    x' = Σ w z'                               de-slice
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from ono.errors import RecipeError, UnsupportedDomain
from ono.nn.measure import Measure, at_least_float32
from ono.nn.softmax_attention import softmax_attention

Points: TypeAlias = Float[Tensor, "batch points width"]
Tokens: TypeAlias = Float[Tensor, "batch heads slices share"]
Slices: TypeAlias = Float[Tensor, "batch heads points slices"]

_EMPTY = 1e-8
"""Keeps the mean of an empty slice finite: the 1e-5 of the released sums, of about 1000 points."""


def _unrounded(x: Tensor) -> torch.autocast:
    """Shut autocast out: slices start so much alike that bfloat16 cannot tell them apart."""
    return torch.autocast(x.device.type, enabled=False)


class MeshConvolution(nn.Module):
    """A convolution of three nodes along each axis of a mesh, of any size."""

    def __init__(self, width: int, out: int, axes: int) -> None:
        super().__init__()
        kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
        if axes not in kinds:
            raise UnsupportedDomain(
                f"transolver has convolutions along one to three axes, got a mesh of {axes}; set "
                "model.convolution=false"
            )
        self.convolution = kinds[axes](width, out, 3, padding=1)

    def forward(
        self, x: Points, shape: tuple[int, ...], mask: Bool[Tensor, "batch points"] | None
    ) -> Float[Tensor, "batch points out"]:
        """Return the convolved features; points that are not real count as those off the mesh."""
        if mask is not None:
            x = x * mask[..., None]
        y: Tensor = self.convolution(x.mT.unflatten(-1, shape))
        return y.flatten(2).mT


class PhysicsAttention(nn.Module):
    """Slice, attend, de-slice.

    On a mesh of so many `axes` the two projections are convolutions and τ is kept between 0.1 and
    5, as released; on scattered points (None) they are linear and τ is free.
    """

    def __init__(self, width: int, heads: int, slices: int, axes: int | None) -> None:
        super().__init__()
        if width % heads:
            raise RecipeError(
                f"model.width must be a multiple of model.heads, got {width} and {heads}"
            )
        self.heads, share = heads, width // heads
        self.on_mesh = axes is not None
        if axes is None:
            self.to_slices: nn.Module = nn.Linear(width, width)
            self.to_features: nn.Module = nn.Linear(width, width)
        else:
            self.to_slices = MeshConvolution(width, width, axes)
            self.to_features = MeshConvolution(width, width, axes)
        self.slice = nn.Linear(share, slices)
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), 0.5))
        self.q = nn.Linear(share, share, bias=False)
        self.k = nn.Linear(share, share, bias=False)
        self.v = nn.Linear(share, share, bias=False)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        x: Points,
        measure: Measure,
        shape: tuple[int, ...] | None = None,
        mask: Bool[Tensor, "batch points"] | None = None,
    ) -> tuple[Points, Tokens]:
        """Return the attention of the points to each other, and the tokens that queries read."""
        grid = (shape, mask) if self.on_mesh else ()
        w = self.slices(self.to_slices(x, *grid))
        tokens = self.attend(self.tokens(w, self.split(self.to_features(x, *grid)), measure))
        return self._deslice(w, tokens), tokens

    def read(self, x: Points, tokens: Tokens) -> Points:
        """Return what other points take from the tokens; only where the projections are linear."""
        return self._deslice(self.slices(self.to_slices(x)), tokens)

    def slices(self, x: Points) -> Slices:
        """Return how much each point belongs to each slice."""
        tau = self.temperature.clamp(0.1, 5) if self.on_mesh else self.temperature
        with _unrounded(x):
            # Dividing the small matrix by τ leaves the scores of all points alone.
            wide = at_least_float32(self.split(x))
            scores = wide @ (self.slice.weight.mT / tau) + self.slice.bias / tau
            return scores.softmax(-1)

    def tokens(self, w: Slices, f: Float[Tensor, "batch heads points share"], m: Measure) -> Tokens:
        """Return the mean of the features over each slice."""
        sums = m.inner(w, F.pad(f, (0, 1), value=1.0))  # of the features, and of one
        return sums[..., :-1] / (sums[..., -1:] + _EMPTY)

    def attend(self, tokens: Tokens) -> Tokens:
        """Return the attention of the tokens of each head to one another."""
        with _unrounded(tokens):
            return softmax_attention(self.q(tokens), self.k(tokens), self.v(tokens), None)

    def split(self, x: Points) -> Float[Tensor, "batch heads points share"]:
        """Show the channels of each head on an axis of their own."""
        heads: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return heads

    def _deslice(self, w: Slices, tokens: Tokens) -> Points:
        with _unrounded(w):
            back = w @ tokens
        returned: Tensor = self.out(back.transpose(1, 2).flatten(2))
        return returned
