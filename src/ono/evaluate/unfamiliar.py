"""Inputs and times unlike those of training, at which an operator answers without knowing."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ono.data.batches import Streamed, in_order
from ono.data.info import Array
from ono.data.view import View
from ono.evaluate.operator import Operator

FAR = 10.0
"""Deviations from the mean of training, the root mean square over a sample, that are far.

The mean square over all of training is one, so at most one sample of it in a hundred is as far,
however its values are spread; a unit that was mistaken is farther.
"""


def distances(
    operator: Operator,
    values: Float[Tensor, "batch points channels"],
    history: Float[Tensor, "batch time points out"] | None = None,
    mask: Bool[Tensor, "batch points"] | None = None,
) -> Float[Tensor, "batch every"]:
    """Return how far inputs, params and known frames are from their means, in deviations.

    It is a number for each sample and channel, the root of a mean square over its points.
    """
    scale = operator.normaliser
    real = values.new_ones(values.shape[:2]) if mask is None else mask.to(values.dtype)
    count = real.sum(1, keepdim=True)
    square = ((values - scale.input_mean) / scale.input_std).square()
    means = [(square * real[..., None]).sum(1) / count]
    if history is not None:
        square = ((history - scale.output_mean) / scale.output_std).square().mean(1)
        means.append((square * real[..., None]).sum(1) / count)
    return torch.cat(means, -1).sqrt()


def tell_far(operator: Operator, found: Float[Tensor, "samples every"]) -> list[str]:
    """Say which channels are far from what they were in training, given their distances."""
    card = operator.card
    channels = (*card.inputs, *card.params, *(card.outputs if card.history else ()))
    lines = []
    for channel, column in zip(channels, found.T, strict=True):
        if far := int((column > FAR).sum()):
            lines.append(
                f"{channel.name} of {far} of {len(column)} samples is far from what it was in "
                f"training, up to {float(column.max()):.2g} deviations from its mean; are units "
                "and channels the same?"
            )
    return lines


def tell_times(operator: Operator, times: Array | None) -> list[str]:
    """Say how many of the times asked for lie outside those of training."""
    if operator.card.task != "timed" or times is None:
        return []
    low, high = min(operator.card.times), max(operator.card.times)
    slack = 1e-5 * (high - low) + 1e-6 * max(abs(low), abs(high))
    outside = int(np.count_nonzero((times < low - slack) | (times > high + slack)))
    if outside == 0:
        return []
    return [f"{outside} of {len(times)} times lie outside those of training, {low:g} to {high:g}"]


def tell_of_view(operator: Operator, view: View, batch: int = 8) -> list[str]:
    """Say what of the rows of a dataset is unlike training."""
    parts = in_order(Streamed(view, operator.device), batch)
    found = [
        distances(operator, part.values, part.history, part.domain.mask).cpu() for part in parts
    ]
    return [*tell_far(operator, torch.cat(found)), *tell_times(operator, view.times)]
