"""Compute every layer's covariance exactly over the training data, before any evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import DataError
from ono.nn.moments import Moments

Seen = tuple[Domain, Tensor] | tuple[Domain, Tensor, Tensor | None]
"""What a model saw in training: where, the scaled values, and the scaled times if it has any."""


@runtime_checkable
class Calibrated(Protocol):
    """A model with statistics of the training data inside."""

    def observe(self, domain: Domain, values: Tensor, *, time: Tensor | None = None) -> None:
        """Add a batch to the sums."""

    def settle(self) -> None:
        """Turn the sums into constants."""


@torch.no_grad()
def calibrate(model: nn.Module, batches: Iterable[Seen]) -> None:
    """Pass the training inputs once and fold the exact statistics into the model.

    The result does not depend on how the data is cut into batches. A model without such
    statistics is left as it is.

    >>> from ono.models.ono import ONO, ONOConfig
    >>> from ono.problem import Problem
    >>> model = ONO(ONOConfig(width=16, layers=2), Problem(dim=2, in_channels=1, out_channels=1))
    >>> grid, a = Domain.grid((5, 5), batch=3), torch.randn(3, 25, 1)
    >>> u = model.train()(grid, a)
    >>> calibrate(model, [(grid, a)])
    >>> torch.allclose(model.eval()(grid, a), u, atol=1e-4)
    True
    """
    moments = [part for part in model.modules() if isinstance(part, Moments)]
    if not moments or not isinstance(model, Calibrated):
        return
    training = model.training
    model.eval()
    try:
        for part in moments:
            part.reset()
        count = 0
        for domain, values, *time in batches:
            model.observe(domain, values, time=time[0] if time else None)
            count += domain.batch
        if count == 0:
            raise DataError("calibration needs at least one training sample, got none")
        model.settle()
    finally:
        model.train(training)


def is_calibrated(model: nn.Module) -> bool:
    """Say whether the statistics inside belong to the present weights."""
    return all(p.state != "stale" for p in model.modules() if isinstance(p, Moments))
