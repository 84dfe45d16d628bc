"""Errors of an operator over a set of samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ono.data.batches import Source, in_order
from ono.evaluate.metrics import channel_errors, relative_l2
from ono.evaluate.operator import Operator


@dataclass(frozen=True, slots=True)
class Score:
    """The relative L2 error of each sample, of each channel alone, and the dataset rows."""

    errors: Float[Tensor, " samples"]
    channels: Float[Tensor, "samples channels"]
    rows: Tensor

    @property
    def mean(self) -> float:
        """The mean over samples: a mean of ratios, not a ratio of means."""
        return float(self.errors.double().mean())


@torch.no_grad()
def score(operator: Operator, source: Source, batch: int = 32) -> Score:
    """Return the errors of a calibrated operator on every sample of a source."""
    training = operator.training
    operator.eval()
    errors, channels, rows = [], [], []
    for part in in_order(source, batch):
        pred = operator(part.domain, part.values)
        errors.append(relative_l2(pred, part.target, part.domain.mask).cpu())
        channels.append(channel_errors(pred, part.target, part.domain.mask).cpu())
        rows.append(part.rows)
    operator.train(training)
    return Score(torch.cat(errors), torch.cat(channels), torch.cat(rows))
