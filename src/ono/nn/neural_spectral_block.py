"""The neural spectral block of LSM (Wu, Hu, Luo, Wang, Long; ICML 2023).

Each patch of a grid is summed up in a few latent tokens, in which the operator is a sum of
trigonometric functions, and is then read back from them.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.nn.measure import at_least_float32


class NeuralSpectralBlock(nn.Module):
    """Encode a patch into latent tokens, move them, decode.

    >>> block = NeuralSpectralBlock(16, basis=12, tokens=4, heads=8)
    >>> block(torch.randn(2, 16, 12, 8), (6, 4)).shape
    torch.Size([2, 16, 12, 8])
    """

    rates: Tensor

    def __init__(self, width: int, *, basis: int, tokens: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.latent = nn.Parameter(torch.rand(heads, tokens, width // heads) / width)
        self.keys_values = nn.Linear(width, 2 * width)
        self.queries = nn.Linear(width, width)
        self.weights = nn.Parameter(torch.rand(width, 2 * basis) / width)
        self.register_buffer("rates", math.pi / basis * torch.arange(basis), persistent=False)

    def forward(
        self, x: Float[Tensor, "batch width *grid"], patch: tuple[int, ...]
    ) -> Float[Tensor, "batch width *grid"]:
        """Return the field after the block; patches of so many nodes must fill the grid."""
        pieces = cut(x, patch)
        keys, values = map(self._split, self.keys_values(pieces).chunk(2, -1))
        queries = self._split(self.queries(pieces))
        with torch.autocast(x.device.type, enabled=False):
            latent = at_least_float32(self.latent)
            tokens = latent + _attend(latent, keys, values)
            tokens = tokens + self._transition(tokens)
            moved = _attend(queries, tokens, tokens).transpose(-3, -2).flatten(-2)
            return join(at_least_float32(pieces) + moved, patch, x.shape[2:])

    def _transition(
        self, z: Float[Tensor, "batch patches heads tokens share"]
    ) -> Float[Tensor, "batch patches heads tokens share"]:
        """Return Σ w sin(π i z / n) + w' cos(π i z / n), i = 0 … n - 1, for each channel."""
        angles = z[..., None] * self.rates.to(z.dtype)
        waves = torch.cat((angles.sin(), angles.cos()), -1)
        weights = self.weights.unflatten(0, (self.heads, -1)).to(z.dtype)
        return torch.einsum("bphtsn,hsn->bphts", waves, weights)

    def _split(self, x: Tensor) -> Float[Tensor, "batch patches heads nodes share"]:
        return at_least_float32(x.unflatten(-1, (self.heads, -1)).transpose(-3, -2))


def _attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    # As released: no division by the square root of the width.
    return (queries @ keys.mT).softmax(-1) @ values


def cut(
    x: Float[Tensor, "batch width *grid"], patch: tuple[int, ...]
) -> Float[Tensor, "batch patches nodes width"]:
    """Cut a grid into patches that do not overlap.

    >>> cut(torch.arange(8.0).reshape(1, 1, 2, 4), (2, 2))[0, :, :, 0].tolist()
    [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]
    """
    axes = range(len(patch))
    for axis in axes:
        x = x.unflatten(2 + 2 * axis, (-1, patch[axis]))
    which, inside = [2 + 2 * axis for axis in axes], [3 + 2 * axis for axis in axes]
    x = x.permute(0, *which, *inside, 1)
    return x.flatten(1 + len(patch), -2).flatten(1, len(patch))


def join(
    pieces: Float[Tensor, "batch patches nodes width"],
    patch: tuple[int, ...],
    grid: tuple[int, ...],
) -> Float[Tensor, "batch width *grid"]:
    """Put patches back together: the inverse of `cut`."""
    dim = len(patch)
    counts = [nodes // size for nodes, size in zip(grid, patch, strict=True)]
    x: Tensor = pieces.unflatten(2, patch).unflatten(1, counts)
    order = [place for axis in range(dim) for place in (1 + axis, 1 + dim + axis)]
    return x.permute(0, -1, *order).reshape(len(x), -1, *grid)
