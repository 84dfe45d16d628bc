"""The two kinds of block: one evolves the eigenfunctions, the other the solution."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from ono.nn.attention import Attention, Summary
from ono.nn.measure import Measure
from ono.nn.mlp import FFN
from ono.nn.orthogonal_attention import Basis, OrthogonalAttention, Told
from ono.nn.recompute import Recomputable


class NNBlock(Recomputable):
    """The NN block of the lower flow (Eq. 3): attention and FFN, each behind a norm."""

    def __init__(self, attention: Attention, width: int, hidden: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = attention
        self.norm_ffn = nn.LayerNorm(width)
        self.ffn = FFN(width, hidden)

    def forward(
        self, g: Float[Tensor, "batch points width"], measure: Measure
    ) -> tuple[Float[Tensor, "batch points width"], Summary]:
        """Return the next g and the summary that query points read."""
        return self.again(self._forward, g, measure)

    def _forward(self, g: Tensor, measure: Measure) -> tuple[Tensor, Summary]:
        attended, summary = self.attention(self.norm_attention(g), measure)
        return self._finish(g + attended), summary

    def read(
        self, g: Float[Tensor, "batch queries width"], summary: Summary
    ) -> Float[Tensor, "batch queries width"]:
        """Return the next g at query points."""
        return self._finish(g + self.attention.read(self.norm_attention(g), summary))

    def _finish(self, g: Tensor) -> Tensor:
        moved: Tensor = g + self.ffn(self.norm_ffn(g))
        return moved


class Unchanged(nn.Module):
    """Stands for an NN block where a layer takes g as the layer before it did."""

    def forward(
        self, g: Float[Tensor, "batch points width"], measure: Measure
    ) -> tuple[Float[Tensor, "batch points width"], Summary]:
        """Return g, and nothing that query points would read."""
        return g, ()

    def read(
        self, g: Float[Tensor, "batch queries width"], summary: Summary
    ) -> Float[Tensor, "batch queries width"]:
        """Return g."""
        return g


class OrthogonalBlock(Recomputable):
    """The block of the upper flow: orthogonal attention (Eq. 5) and σ (Eq. 6).

    "post" is the printed form FFN(LN(h̃ + h)); "pre" is h + A(LN h), then h + FFN(LN h), whose
    residual stream nothing rescales. The last block of the "post" form ends in the outputs: its
    `ffn` is the projection P.
    """

    def __init__(
        self,
        attention: OrthogonalAttention,
        ffn: nn.Module,
        width: int,
        form: Literal["pre", "post"],
    ) -> None:
        super().__init__()
        self.form = form
        self.norm_attention = nn.LayerNorm(width) if form == "pre" else nn.Identity()
        self.attention = attention
        self.norm_ffn = nn.LayerNorm(width)
        self.ffn = ffn

    def forward(
        self, basis: Basis, h: Float[Tensor, "batch *time points width"], measure: Measure
    ) -> tuple[Float[Tensor, "batch *time points out"], Told]:
        """Return the next h and what query points need."""
        return self.again(self._forward, basis, h, measure)

    def _forward(self, basis: Basis, h: Tensor, measure: Measure) -> tuple[Tensor, Told]:
        attended, told = self.attention(basis, self.norm_attention(h), measure)
        return self._finish(attended + h), told

    def read(
        self,
        g: Float[Tensor, "batch queries lower"],
        h: Float[Tensor, "batch *time queries width"] | None,
        told: Told,
    ) -> Float[Tensor, "batch *time queries out"]:
        """Return the next h at query points; there is none yet in the first layer of Eq. 20."""
        attended = self.attention.read(g, told)
        return self._finish(attended if h is None else attended + h)

    def _finish(self, h: Tensor) -> Tensor:
        moved: Tensor = self.ffn(self.norm_ffn(h))
        return moved if self.form == "post" else h + moved
