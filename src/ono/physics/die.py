"""The rigid die that is driven into the block: a random curve, and the surface it makes.

A die is known by its height y above the bottom of the block before it moves, at 101 points
x = -49.65, -49.15 ... 0.35 mm in that order. Its lowest point touches the block at y = 14.9.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from torch import Tensor

from ono.errors import DataError, ShapeError

POINTS, SPACING = 101, 0.5
LEFT, RIGHT, TOP = -49.65, 0.35, 14.9
KNOTS, RISE = 9, 7.5  # knots of the random curve, and how high both of its ends are

X = np.linspace(LEFT, RIGHT, POINTS)


def die_heights(seed: int, index: int, attempt: int = 0) -> NDArray[np.float64]:
    """Draw one die; nothing but the three numbers decides it.

    A natural cubic spline runs through 9 equidistant knots: 7.5 mm at both ends, U[0, 7.5]
    between them. It is then stretched, with its ends where they are, until its minimum is 0.

    >>> heights = die_heights(seed=0, index=7)
    >>> heights.shape, heights[[0, -1]].round(9).tolist()
    ((101,), [22.4, 22.4])
    """
    stream = np.random.Philox(np.random.SeedSequence((seed, index, attempt)))
    height = np.full(KNOTS, RISE)
    height[1:-1] = np.random.Generator(stream).uniform(0, RISE, KNOTS - 2)
    spline = CubicSpline(np.linspace(LEFT, RIGHT, KNOTS), height, bc_type="natural")
    lowest = spline(spline.derivative().roots(extrapolate=False)).min()
    profile: NDArray[np.float64] = RISE - (RISE - spline(X)) * RISE / (RISE - lowest)
    return TOP + profile


@dataclass(frozen=True, slots=True)
class Surface:
    """Natural cubic splines through the points of many dies; the batch is the last axis."""

    cubic: Float[Tensor, "4 pieces batch"]  # coefficients in x - x_k, the cube first

    @classmethod
    def through(cls, heights: Float[Tensor, "batch points"], like: Tensor) -> Surface:
        """Return the surfaces of dies, with the dtype and the device of `like`."""
        if heights.shape[1] != POINTS:
            raise ShapeError(f"a die needs {POINTS} heights, got {heights.shape[1]}")
        bad = ~heights.isfinite().all(1)
        if bad.any():
            which = bad.nonzero().flatten().tolist()
            raise DataError(
                f"die heights must be finite; {len(which)} of {len(heights)} samples are not, "
                f"the first at batch index {which[0]}"
            )
        profile = heights.cpu().double().numpy().T - TOP
        return cls(torch.from_numpy(CubicSpline(X, profile, bc_type="natural").c).to(like))

    def profile(
        self, x: Float[Tensor, "nodes batch"]
    ) -> tuple[Float[Tensor, "nodes batch"], Float[Tensor, "nodes batch"]]:
        """Return the height above y = 14.9 and the slope at x; beyond its ends a die is flat."""
        inside = x.clamp(LEFT, RIGHT)
        along = inside - LEFT
        piece = (along / SPACING).long().clamp(0, POINTS - 2)
        s = along - SPACING * piece.to(x.dtype)
        a, b, c, d = self.cubic.gather(1, piece.expand(4, *piece.shape)).unbind()
        slope = (3 * a * s + 2 * b) * s + c
        return ((a * s + b) * s + c) * s + d, torch.where(inside == x, slope, 0.0)
