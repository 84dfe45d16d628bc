"""Errors between fields, as pure functions that state their reduction.

Norms are in float64: the square of a small or large number leaves the range of float32.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ono.errors import ShapeError


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
    if not torch.compiler.is_compiling() and pred.shape != true.shape:
        raise ShapeError(
            f"prediction {list(pred.shape)} and truth {list(true.shape)} must have one shape"
        )
    return (_norm(_real(pred - true, mask)) / _norm(_real(true, mask))).to(pred.dtype)


def _real(x: Float[Tensor, " batch *rest"], mask: Tensor | None) -> Float[Tensor, " batch *rest"]:
    if mask is None:
        return x
    return x * mask.reshape(mask.shape[0], *(1,) * (x.ndim - 3), mask.shape[1], 1)


def _norm(x: Float[Tensor, " batch *rest"]) -> Float[Tensor, " batch"]:
    norm: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64)
    return norm


def channel_errors(
    pred: Float[Tensor, "batch *rest channels"],
    true: Float[Tensor, "batch *rest channels"],
    mask: Bool[Tensor, "batch points"] | None = None,
) -> Float[Tensor, "batch channels"]:
    """Return the relative error of every channel alone.

    A channel of large numbers hides the others in the common norm.

    >>> true = torch.tensor([[[1000.0, 1.0]]])
    >>> channel_errors(torch.tensor([[[1000.0, 0.0]]]), true).tolist()
    [[0.0, 1.0]]
    """
    parts = zip(pred.split(1, -1), true.split(1, -1), strict=True)
    return torch.stack([relative_l2(ours, theirs, mask) for ours, theirs in parts], -1)


def frame_errors(
    pred: Float[Tensor, "batch time points channels"],
    true: Float[Tensor, "batch time points channels"],
    mask: Bool[Tensor, "batch points"] | None = None,
) -> Float[Tensor, "batch time"]:
    """Return the relative error of every time alone.

    >>> true = torch.ones(1, 2, 5, 1)
    >>> frame_errors(true * torch.tensor([1.0, 0.5]).reshape(1, 2, 1, 1), true).tolist()
    [[0.0, 0.5]]
    """
    pairs = zip(pred.unbind(1), true.unbind(1), strict=True)
    return torch.stack([relative_l2(ours, theirs, mask) for ours, theirs in pairs], -1)


def frame_norms(
    fields: Float[Tensor, "batch time points channels"],
    mask: Bool[Tensor, "batch points"] | None = None,
) -> Float[Tensor, "batch time"]:
    """Return the norm of every time, with which errors of frames make one of several together.

    >>> frame_norms(torch.ones(1, 2, 4, 1)).tolist()
    [[2.0, 2.0]]
    """
    return torch.stack([_norm(_real(frame, mask)) for frame in fields.unbind(1)], -1)


def gradient_relative_l2(
    pred: Float[Tensor, "batch points channels"],
    true: Float[Tensor, "batch points channels"],
    shape: tuple[int, ...],
) -> Float[Tensor, " batch"]:
    """Return the sum over axes of the relative error of central differences on a grid.

    Only interior nodes along the axis take part, so no value is invented outside the grid. On a
    uniform grid the spacing cancels. An axis of fewer than three nodes has no differences, and a
    field that hardly varies along an axis is measured against its other slopes.

    >>> field = torch.linspace(0, 1, 5).reshape(1, 5, 1)
    >>> gradient_relative_l2(field + 3, field, (5,)).tolist()
    [0.0]
    """
    fields = pred.unflatten(1, shape), true.unflatten(1, shape)
    errors, sizes = [], []
    for axis, nodes in enumerate(shape, start=1):
        if nodes >= 3:
            ours, theirs = (
                field.narrow(axis, 2, nodes - 2) - field.narrow(axis, 0, nodes - 2)
                for field in fields
            )
            errors.append(_norm(ours - theirs))
            sizes.append(_norm(theirs))
    if not errors:
        return torch.zeros_like(pred[:, 0, 0])
    least = 1e-3 * torch.linalg.vector_norm(torch.stack(sizes), dim=0)
    least = least + torch.finfo(least.dtype).tiny
    ratios = [error / torch.maximum(size, least) for error, size in zip(errors, sizes, strict=True)]
    return torch.stack(ratios).sum(0).to(pred.dtype)
