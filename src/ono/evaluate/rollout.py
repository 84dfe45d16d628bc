"""From an operator's own frames onwards."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ono.data.windows import with_history
from ono.domain import Domain


def roll_out(
    operator: Callable[[Domain, Tensor], Tensor],
    domain: Domain,
    values: Float[Tensor, "batch points channels"],
    history: Float[Tensor, "batch known points out"],
    steps: int,
) -> Float[Tensor, "batch steps points out"]:
    """Predict frame after frame, each from the latest ones, its own predictions among them."""
    frames = list(history.unbind(1))
    for _ in range(steps):
        latest = torch.stack(frames[-history.shape[1] :], 1)
        frames.append(operator(domain, with_history(values, latest)))
    return torch.stack(frames[-steps:], 1)
