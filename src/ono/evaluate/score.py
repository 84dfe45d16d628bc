"""Errors of an operator over a set of samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ono.data.batches import Source, in_order
from ono.device import quick_products
from ono.evaluate.metrics import channel_errors, frame_errors, relative_l2
from ono.evaluate.operator import Operator
from ono.evaluate.shortage import halving


@dataclass(frozen=True, slots=True)
class Score:
    """The relative L2 error of each sample, of each channel or frame alone, and the rows."""

    errors: Float[Tensor, " samples"]
    channels: Float[Tensor, "samples channels"]
    rows: Tensor
    frames: Float[Tensor, "samples time"] | None = None

    @property
    def mean(self) -> float:
        """The mean over samples: a mean of ratios, not a ratio of means."""
        return float(self.errors.double().mean())


@torch.no_grad()
def score(operator: Operator, source: Source, batch: int | None = None) -> Score:
    """Return the errors of a calibrated operator on every sample of a source.

    Nothing waits for the device before all samples are on their way.
    """
    training = operator.training
    operator.eval()
    try:
        with quick_products(operator.device):
            return halving(batch or source.many, partial(_score, operator, source))
    finally:
        operator.train(training)


def _score(operator: Operator, source: Source, batch: int) -> Score:
    errors, channels, frames, rows = [], [], [], []
    for part in in_order(source, batch):
        pred, mask = operator.answer(part), part.domain.mask
        errors.append(relative_l2(pred, part.target, mask))
        channels.append(channel_errors(pred, part.target, mask))
        if part.times is not None:
            frames.append(frame_errors(pred, part.target, mask))
        rows.append(part.rows)
    by_frame = torch.cat(frames).cpu() if frames else None
    return Score(torch.cat(errors).cpu(), torch.cat(channels).cpu(), torch.cat(rows), by_frame)
