"""Fourier series of functions known at scattered places of the unit torus.

    û(k) = Σ_p w_p u(ξ_p) e^{-2πi k·ξ_p}          u(ξ) = Σ_k û(k) e^{2πi k·ξ}

The weights w sum to one. On a uniform grid û is what `spectral.analyse` gives. The second sum runs
over all k; for real u it is Re of the kept half, with k and -k taken together: -k has every
component reversed, and k = 0 is its own mirror image.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ono.nn.fourier_matrices import Pair, mirrored, wave_numbers
from ono.nn.measure import Measure

_NUMBERS_AT_ONCE = 1 << 27


def analyse_at(
    u: Float[Tensor, "batch points width"],
    places: Float[Tensor, "batch points dim"],
    kept: tuple[int, ...],
    measure: Measure,
) -> Pair:
    """Return the kept coefficients [batch width *modes] of values at places, as a pair."""
    cos, sin = _waves_at(places, kept)
    parts = measure.inner(u, torch.cat((cos, -sin), -1))
    real, imaginary = parts.unflatten(-1, (2, *kept)).unbind(2)
    return real, imaginary


def synthesise_at(
    coefficients: Pair, places: Float[Tensor, "batch points dim"]
) -> Float[Tensor, "batch points width"]:
    """Evaluate the real series at any places, some of them at a time if they are many."""
    real, imaginary = coefficients
    kept = tuple(real.shape[2:])
    twice = mirrored(None, kept[-1], real)
    # Re(û e^{iφ}) = Re û cos φ - Im û sin φ
    stacked = torch.cat(((real * twice).flatten(2), -(imaginary * twice).flatten(2)), -1).mT
    chunk = max(1, _NUMBERS_AT_ONCE // (stacked.shape[0] * stacked.shape[1]))
    parts = [torch.cat(_waves_at(some, kept), -1) @ stacked for some in places.split(chunk, 1)]
    return torch.cat(parts, 1)


def _waves_at(places: Float[Tensor, "batch points dim"], kept: tuple[int, ...]) -> Pair:
    """Return cos and sin of 2π k·ξ, [batch points modes], modes flattened in their order."""
    phase = places.new_zeros(*places.shape[:2], 1)
    for axis, count in enumerate(kept):
        k = wave_numbers(count, places, half=axis == len(kept) - 1).to(places.dtype)
        along = 2 * math.pi * places[..., axis, None] * k
        phase = (phase[..., :, None] + along[..., None, :]).flatten(2)
    return phase.cos(), phase.sin()
