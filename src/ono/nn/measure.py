"""The inner product of functions known at points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

_PIECE = 512


@dataclass(frozen=True, slots=True)
class Measure:
    """How much each point counts in an integral.

    `weights` sum to one over the points of a sample and are zero on padding; None is the uniform
    measure 1/M. `total` multiplies the inner product: one, except for the plain sum of the
    released code, where it is the number of points. Where nothing is `padded` all points are real,
    else those of weight zero are not.
    """

    weights: Float[Tensor, "batch points"] | None = None
    total: Float[Tensor, " batch"] | float = 1.0
    padded: bool = True

    def inner(
        self, a: Float[Tensor, "batch *rest points p"], b: Float[Tensor, "batch *more points q"]
    ) -> Float[Tensor, "batch *all p q"]:
        """Return <a_i, b_j> = sum over points of w a_i b_j, in float32 or better.

        Autocast is shut out: a bfloat16 sum over thousands of points loses the small modes.
        """
        with torch.autocast(a.device.type, enabled=False):
            a, b = at_least_float32(a), at_least_float32(b)
            if self.weights is None:
                return sum_over_points(a, b) / a.shape[-2]
            return sum_over_points(a, along_points(self.weights, b).to(b.dtype) * b)


def sum_over_points(
    a: Float[Tensor, "*batch points p"],
    b: Float[Tensor, "*more points q"],
    piece: int | None = None,
) -> Float[Tensor, "*all p q"]:
    """Return aᵀb; on a GPU in pieces of points, so that more than a few of its parts have work.

    >>> a, b = torch.arange(10.0).reshape(5, 2), torch.ones(5, 1)
    >>> sum_over_points(a, b, piece=2).flatten().tolist()
    [20.0, 25.0]
    """
    points = a.shape[-2]
    if piece is None:
        piece = _PIECE if a.is_cuda and points >= 4 * _PIECE else points
    whole = points // piece * piece
    if whole <= piece:
        return a.mT @ b
    first, second = (x[..., :whole, :].unflatten(-2, (-1, piece)) for x in (a, b))
    total: Tensor = (first.mT @ second).sum(-3)
    if whole < points:
        total = total + a[..., whole:, :].mT @ b[..., whole:, :]
    return total


def along_points(
    x: Float[Tensor, "batch points"], like: Float[Tensor, "batch *rest points q"]
) -> Float[Tensor, "batch *ones points one"]:
    """Reshape per-point numbers so that they multiply `like` along its points."""
    return x.reshape(x.shape[0], *(1,) * (like.ndim - 3), x.shape[1], 1)


def at_least_float32(x: Tensor) -> Tensor:
    """Widen half-precision tensors; leave float32 and float64 as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
