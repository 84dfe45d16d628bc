"""Fourier layers that treat one axis at a time (F-FNO; Tran, Mathews, Xie, Ong; ICLR 2023)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.nn.spectral import SpectralConv
from ono.nn.weight_normed import WeightNormedFFN


class FactorisedSpectral(nn.Module):
    """Convolve along each axis with its own few Fourier modes; sum over the axes.

    The number of weights grows with the sum of the modes of the axes instead of their product.
    Channels come last, where the network that follows wants them.

    >>> filter = FactorisedSpectral(8, (3, 2))
    >>> filter(torch.randn(4, 11, 6, 8)).shape
    torch.Size([4, 11, 6, 8])
    """

    def __init__(
        self, width: int, modes: tuple[int, ...], form: Literal["fft", "product"] = "fft"
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(SpectralConv(width, width, (m,), form) for m in modes)
        for conv, count in zip(self.convs, modes, strict=True):
            # Xavier's rule, where a mode's real and imaginary parts are taps of a convolution.
            nn.init.normal_(conv.get_parameter("weight"), std=(2 * count * width) ** -0.5)

    def forward(self, x: Float[Tensor, "batch *grid width"]) -> Float[Tensor, "batch *grid width"]:
        """Return the filtered field, on a grid of any size."""
        parts = []
        for axis, conv in enumerate(self.convs, 1):
            lines = x.movedim(axis, -1)
            filtered = conv(lines.flatten(0, -3)).reshape(lines.shape)
            parts.append(filtered.movedim(-1, axis))
        return torch.stack(parts).sum(0)


class FactorisedBlocks(nn.Module):
    """Layers b = FFN(Σ over axes of a Fourier filter of x), x ← x + b.

    With `shared` all layers use one set of Fourier weights. It is kept once, here, so that a
    state dict does not name the same tensor twice.
    """

    def __init__(
        self, width: int, modes: tuple[int, ...], layers: int, *, factor: int, shared: bool
    ) -> None:
        super().__init__()
        count = 1 if shared else layers
        self.filters = nn.ModuleList(FactorisedSpectral(width, modes) for _ in range(count))
        self.ffns = nn.ModuleList(WeightNormedFFN(width, factor) for _ in range(layers))

    def forward(
        self,
        x: Float[Tensor, "batch *grid width"],
        place: Float[Tensor, "one *grid width"] | None = None,
    ) -> tuple[Float[Tensor, "batch *grid width"], Float[Tensor, "batch *grid width"]]:
        """Return x after all layers, and b of the last one.

        `place` is added in every layer, where a grid must be told again where its nodes are.
        """
        b = torch.zeros_like(x)
        for layer, ffn in enumerate(self.ffns):
            b = ffn(self.filters[layer % len(self.filters)](x))
            x = x + b if place is None else x + b + place
        return x, b
