"""The spectral convolution of the Fourier neural operator (Li et al., ICLR 2021).

    (K v)(x) = F⁻¹( R · F v )(x)                                        Eq. 4

R is a matrix for every low wave number k and zero for the others. Along every axis but the last
the kept wave numbers are 0 … m-1, -m … -1; along the last they are 0 … m-1, since v is real.

Coefficients carry the factor 1/N of the forward transform. They are those of the function, not
of its samples, and mean the same on every grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from ono.nn.fourier_matrices import analyse_pairs, mirrored, mix_pairs, synthesise_pairs
from ono.nn.measure import at_least_float32


class SpectralConv(nn.Module):
    """Multiply the low Fourier modes of a field by learned matrices R.

    The grid may have any number of axes and any size; modes it cannot carry are left out. The
    form "fft" is the fast one on fine grids. "product" gives the same by real matrix products
    with cut-off Fourier matrices, for runtimes without complex numbers.

    >>> conv = SpectralConv(3, 5, modes=(4, 4))
    >>> conv(torch.randn(2, 3, 9, 14)).shape
    torch.Size([2, 5, 9, 14])
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        modes: tuple[int, ...],
        form: Literal["fft", "product"] = "fft",
    ) -> None:
        super().__init__()
        self.modes, self.form = modes, form
        self.weight = spectral_weight(in_width, out_width, modes)

    def forward(
        self, v: Float[Tensor, "batch channels *grid"]
    ) -> Float[Tensor, "batch width *grid"]:
        """Return K v on the grid of v, in float32 or better."""
        with torch.autocast(v.device.type, enabled=False):
            v = at_least_float32(v)
            if self.form == "product":
                kept = kept_modes(v.shape[2:], self.modes)
                mixed = mix_pairs(analyse_pairs(v, kept), self._weight_for(kept))
                return synthesise_pairs(mixed, v.shape[2:])
            return synthesise(self.mix(analyse(v, self.modes)), v.shape[2:])

    def mix(
        self, coefficients: Complex[Tensor, "batch channels *modes"]
    ) -> Complex[Tensor, "batch width *modes"]:
        """Multiply the coefficients of every wave number by its R."""
        weight = torch.view_as_complex(self._weight_for(coefficients.shape[2:]))
        return (coefficients.movedim((0, 1), (-2, -1)) @ weight).movedim((-2, -1), (0, 1))

    def _weight_for(self, kept: Sequence[int]) -> Float[Tensor, "*modes channels width 2"]:
        """Return R for the wave numbers that a grid can carry."""
        weight: Tensor = self.weight
        for axis, count in enumerate(kept[:-1]):
            weight = _ends(weight, axis, count)
        return weight.narrow(len(kept) - 1, 0, kept[-1])


def spectral_weight(in_width: int, out_width: int, modes: tuple[int, ...]) -> nn.Parameter:
    """Return R as published, U[0, 1) / (in · out): [*modes in out 2], real and imaginary parts."""
    kept = (*(2 * m for m in modes[:-1]), modes[-1])
    return nn.Parameter(torch.rand(*kept, in_width, out_width, 2) / (in_width * out_width))


def kept_modes(grid: Sequence[int], modes: Sequence[int]) -> tuple[int, ...]:
    """Return how many wave numbers are kept along each axis of a grid.

    >>> kept_modes((64, 64), (12, 12)), kept_modes((5, 6), (12, 12))
    ((24, 12), (5, 4))
    """
    *first, last = zip(grid, modes, strict=True)
    return (*(min(2 * m, n) for n, m in first), min(last[1], last[0] // 2 + 1))


def analyse(
    v: Float[Tensor, "batch channels *grid"], modes: tuple[int, ...]
) -> Complex[Tensor, "batch channels *modes"]:
    """Return the low Fourier coefficients of a periodic field, ∫ v(x) e^{-2πi k·x} dx.

    One axis after the other, so that the later transforms see few modes only.
    """
    kept = kept_modes(v.shape[2:], modes)
    coefficients: Tensor = torch.fft.rfft(v, dim=-1, norm="forward").narrow(-1, 0, kept[-1])
    for axis in range(v.ndim - 2, 1, -1):
        coefficients = torch.fft.fft(coefficients, dim=axis, norm="forward")
        coefficients = _ends(coefficients, axis, kept[axis - 2])
    return coefficients


def synthesise(
    coefficients: Complex[Tensor, "batch channels *modes"], grid: Sequence[int]
) -> Float[Tensor, "batch channels *grid"]:
    """Return the real field with the given low Fourier coefficients on a grid."""
    for axis, nodes in enumerate(grid[:-1], 2):
        coefficients = _spaced(coefficients, axis, nodes)
        coefficients = torch.fft.ifft(coefficients, dim=axis, norm="forward")
    # A real field has no imaginary part at k = 0; what cuFFT makes of one is not specified.
    real = mirrored(grid[-1], coefficients.shape[-1], coefficients.real) < 2
    imaginary = coefficients.imag.masked_fill(real, 0)
    coefficients = torch.complex(coefficients.real, imaginary)
    field: Tensor = torch.fft.irfft(coefficients, n=grid[-1], dim=-1, norm="forward")
    return field


def _ends(x: Tensor, axis: int, count: int) -> Tensor:
    """Keep so many entries of an axis: the first half and the last half."""
    size = x.shape[axis]
    if count == size:
        return x
    plus, minus = (count + 1) // 2, count // 2
    return torch.cat((x.narrow(axis, 0, plus), x.narrow(axis, size - minus, minus)), axis)


def _spaced(x: Tensor, axis: int, size: int) -> Tensor:
    """Undo `_ends` with zeros between the halves."""
    count = x.shape[axis]
    if count == size:
        return x
    plus, minus = (count + 1) // 2, count // 2
    zeros = x.new_zeros((*x.shape[:axis], size - count, *x.shape[axis + 1 :]))
    return torch.cat((x.narrow(axis, 0, plus), zeros, x.narrow(axis, plus, minus)), axis)
