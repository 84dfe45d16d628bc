"""Fourier transforms by real matrix products, one axis after the other.

A few modes of a small grid need no fast transform, and exported models have no complex numbers.
Complex fields travel as pairs (real part, imaginary part).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

Pair = tuple[Tensor, Tensor]


def wave_numbers(count: int, like: Tensor, *, half: bool) -> Int[Tensor, " modes"]:
    """Return the wave numbers of an axis in the order in which they are kept.

    >>> here = torch.zeros(())
    >>> wave_numbers(4, here, half=False).tolist(), wave_numbers(4, here, half=True).tolist()
    ([0, 1, -2, -1], [0, 1, 2, 3])
    """
    k = torch.arange(count, device=like.device)
    return k if half else torch.where(k < (count + 1) // 2, k, k - count)


def mirrored(nodes: int | None, count: int, like: Tensor) -> Float[Tensor, " modes"]:
    """Return how often a wave number of the last axis occurs: as k and -k, or as itself only.

    >>> mirrored(6, 4, torch.zeros(())).tolist(), mirrored(7, 4, torch.zeros(())).tolist()
    ([1.0, 2.0, 2.0, 1.0], [1.0, 2.0, 2.0, 2.0])
    """
    k = torch.arange(count, device=like.device)
    alone = k == 0 if nodes is None else (k == 0) | (2 * k == nodes)
    return 2 - alone.to(like.dtype)


def analyse_pairs(v: Float[Tensor, "batch channels *grid"], kept: Sequence[int]) -> Pair:
    """Return the coefficients that `spectral.analyse` gives, as a pair."""
    real, imaginary = v, None
    for axis in range(v.ndim - 1, 1, -1):
        nodes = v.shape[axis]
        cos, sin = _waves(nodes, kept[axis - 2], v, half=axis == v.ndim - 1)
        c, s = cos / nodes, -sin / nodes  # e^{-iθ}
        if imaginary is None:
            real, imaginary = _along(real, c, axis), _along(real, s, axis)
        else:
            real, imaginary = _turned((real, imaginary), c, s, axis)
    assert imaginary is not None
    return real, imaginary


def mix_pairs(coefficients: Pair, weight: Float[Tensor, "*modes channels width 2"]) -> Pair:
    """Multiply the coefficients of every wave number by its complex matrix."""
    a, b = (part.movedim((0, 1), (-2, -1)) for part in coefficients)
    r, i = weight.unbind(-1)
    real, imaginary = a @ r - b @ i, a @ i + b @ r
    return real.movedim((-2, -1), (0, 1)), imaginary.movedim((-2, -1), (0, 1))


def synthesise_pairs(
    coefficients: Pair, grid: Sequence[int]
) -> Float[Tensor, "batch channels *grid"]:
    """Return the real field that `spectral.synthesise` gives."""
    *first, nodes = grid
    for axis, size in enumerate(first, 2):
        count = coefficients[0].shape[axis]
        c, s = (wave.mT for wave in _waves(size, count, coefficients[0], half=False))
        coefficients = _turned(coefficients, c, s, axis)
    real, imaginary = coefficients
    count = real.shape[-1]
    twice = mirrored(nodes, count, real)
    c, s = (wave.mT * twice[:, None] for wave in _waves(nodes, count, real, half=True))
    return real @ c - imaginary @ s


def _waves(nodes: int, count: int, like: Tensor, *, half: bool) -> Pair:
    """Return cos and sin of 2π k j / n, [nodes modes]."""
    k = wave_numbers(count, like, half=half)
    # Whole turns are taken off as integers, where nothing is rounded.
    turns = (torch.arange(nodes, device=like.device)[:, None] * k) % nodes
    angle = (2 * math.pi / nodes) * turns.to(like.dtype)
    return angle.cos(), angle.sin()


def _turned(field: Pair, c: Tensor, s: Tensor, axis: int) -> Pair:
    """Multiply an axis by c + i s."""
    a, b = field
    real = _along(a, c, axis) - _along(b, s, axis)
    return real, _along(a, s, axis) + _along(b, c, axis)


def _along(x: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Multiply one axis of x by a matrix from the right."""
    product: Tensor = (x.movedim(axis, -1) @ matrix).movedim(-1, axis)
    return product
