"""Errors between fields, as pure functions that state their reduction."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def relative_l2(
    pred: Float[Tensor, " batch *rest"],
    true: Float[Tensor, " batch *rest"],
    mask: Bool[Tensor, "batch points"] | None = None,
) -> Float[Tensor, " batch"]:
    """Return ||pred_i - true_i|| / ||true_i|| for each sample i (Eq. 1).

    The norm runs over all points, channels and times of a sample; `mask` leaves padding out.

    >>> relative_l2(torch.zeros(2, 5, 1), torch.ones(2, 5, 1)).tolist()
    [1.0, 1.0]
    """
    difference = pred - true
    if mask is not None:
        real = mask.reshape(mask.shape[0], *(1,) * (pred.ndim - 3), mask.shape[1], 1)
        difference, true = difference * real, true * real
    error: Tensor = torch.linalg.vector_norm(difference.flatten(1), dim=1)
    scale: Tensor = torch.linalg.vector_norm(true.flatten(1), dim=1)
    return error / scale


def gradient_relative_l2(
    pred: Float[Tensor, "batch points channels"],
    true: Float[Tensor, "batch points channels"],
    shape: tuple[int, ...],
) -> Float[Tensor, " batch"]:
    """Return the sum over axes of the relative error of central differences on a grid.

    Only interior nodes along the axis take part, so no value is invented outside the grid. On a
    uniform grid the spacing cancels.

    >>> field = torch.linspace(0, 1, 5).reshape(1, 5, 1)
    >>> gradient_relative_l2(field + 3, field, (5,)).tolist()
    [0.0]
    """
    total = torch.zeros(pred.shape[0], dtype=pred.dtype, device=pred.device)
    for axis, nodes in enumerate(shape, start=1):
        slopes = [
            field.narrow(axis, 2, nodes - 2) - field.narrow(axis, 0, nodes - 2)
            for field in (pred.unflatten(1, shape), true.unflatten(1, shape))
        ]
        total = total + relative_l2(slopes[0], slopes[1])
    return total
