"""Means over runs of consecutive points."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def run_means(
    x: Float[Tensor, "*batch points channels"], run: int
) -> Float[Tensor, "*batch runs channels"]:
    """Return the mean of every run of so many points; the last may be shorter.

    >>> run_means(torch.tensor([[1.0], [3.0], [5.0]]), 2).tolist()
    [[2.0], [5.0]]
    """
    means: Tensor = _RunMeans.apply(x, run)  # type: ignore[no-untyped-call]
    return means


class _RunMeans(torch.autograd.Function):
    """Written out, as autograd would fill a gradient with zeros for the whole runs and the rest."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: int) -> Tensor:
        points = x.shape[-2]
        ctx.points, ctx.run = points, run
        whole = points // run
        means: Tensor = x[..., : whole * run, :].unflatten(-2, (whole, run)).mean(-2)
        if whole * run == points:
            return means
        return torch.cat((means, x[..., whole * run :, :].mean(-2, keepdim=True)), -2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (d_means,) = gradients
        shared = d_means / ctx.run
        if rest := ctx.points % ctx.run:
            shared[..., -1, :] *= ctx.run / rest
        return shared.repeat_interleave(ctx.run, -2)[..., : ctx.points, :], None
