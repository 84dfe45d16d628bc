"""Errors of an operator over a set of samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ono.data.batches import Source, in_order
from ono.evaluate.metrics import channel_errors, frame_errors, relative_l2
from ono.evaluate.operator import Operator


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
def score(operator: Operator, source: Source, batch: int = 32) -> Score:
    """Return the errors of a calibrated operator on every sample of a source."""
    training = operator.training
    operator.eval()
    errors, channels, frames, rows = [], [], [], []
    for part in in_order(source, batch):
        pred, mask = operator.answer(part), part.domain.mask
        errors.append(relative_l2(pred, part.target, mask).cpu())
        channels.append(channel_errors(pred, part.target, mask).cpu())
        if part.times is not None:
            frames.append(frame_errors(pred, part.target, mask).cpu())
        rows.append(part.rows)
    operator.train(training)
    by_frame = torch.cat(frames) if frames else None
    return Score(torch.cat(errors), torch.cat(channels), torch.cat(rows), by_frame)
