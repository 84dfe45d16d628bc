"""Errors of an operator over a set of samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ono.data.batches import Source, in_order
from ono.device import quick_products
from ono.evaluate.metrics import channel_errors, frame_errors, frame_norms, relative_l2
from ono.evaluate.operator import Operator
from ono.evaluate.shortage import halving


@dataclass(frozen=True, slots=True)
class Score:
    """The relative L2 error of each sample, of each channel or frame alone, and the rows.

    `norms` are those of the true frames.
    """

    errors: Float[Tensor, " samples"]
    channels: Float[Tensor, "samples channels"]
    rows: Tensor
    frames: Float[Tensor, "samples time"] | None = None
    norms: Float[Tensor, "samples time"] | None = None

    @property
    def mean(self) -> float:
        """The mean over samples: a mean of ratios, not a ratio of means."""
        return float(self.errors.double().mean())

    def mean_over(self, times: slice) -> float:
        """Return the mean over samples of the error of some frames in one norm, as of all."""
        assert self.frames is not None
        assert self.norms is not None
        norms = self.norms[:, times]
        missed = self.frames[:, times] * norms
        return float((missed.norm(dim=1) / norms.norm(dim=1)).mean())


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
    errors, channels, frames, norms, rows = [], [], [], [], []
    for part in in_order(source, batch):
        pred, mask = operator.answer(part), part.domain.mask
        errors.append(relative_l2(pred, part.target, mask))
        channels.append(channel_errors(pred, part.target, mask))
        if part.times is not None:
            frames.append(frame_errors(pred, part.target, mask))
            norms.append(frame_norms(part.target, mask))
        rows.append(part.rows)
    return Score(
        torch.cat(errors).cpu(),
        torch.cat(channels).cpu(),
        torch.cat(rows),
        torch.cat(frames).cpu() if frames else None,
        torch.cat(norms).cpu() if norms else None,
    )
