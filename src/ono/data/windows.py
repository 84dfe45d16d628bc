"""One-step problems from series: the latest frames become channels, oldest first."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ono.data.view import Batch
from ono.domain import Domain


def with_history(
    values: Float[Tensor, "batch points channels"],
    frames: Float[Tensor, "batch time points out"],
) -> Float[Tensor, "batch points all"]:
    """Append frames to the static inputs as channels.

    >>> with_history(torch.zeros(2, 5, 1), torch.ones(2, 10, 5, 3)).shape
    torch.Size([2, 5, 31])
    """
    return torch.cat((values, frames.transpose(1, 2).flatten(2)), -1)


def windows(batch: Batch) -> tuple[Domain, Tensor, Tensor]:
    """Return every one-step problem of a batch of series: domain, values and next frame.

    The steps of a sample follow each other: [batch * steps ...]. Each starts from true frames, so
    this is teacher forcing.
    """
    assert batch.history is not None
    known, steps = batch.history.shape[1], batch.target.shape[1]
    frames = torch.cat((batch.history, batch.target), 1)
    seen = torch.stack([frames[:, step : step + known] for step in range(steps)], 1).flatten(0, 1)
    values = with_history(batch.values.repeat_interleave(steps, 0), seen)
    return batch.domain.repeat(steps), values, batch.target.flatten(0, 1)
