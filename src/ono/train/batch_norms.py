"""The running statistics of batch norms, which a forward pass changes by itself.

Some peers have them. A step that is not applied must not have changed them, and averaged weights
need them too.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def running_statistics(module: nn.Module) -> list[Tensor]:
    """Return the buffers that batch norms change in training."""
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    kept = [(n.running_mean, n.running_var, n.num_batches_tracked) for n in norms]
    return [buffer for buffers in kept for buffer in buffers if buffer is not None]


@torch.no_grad()
def keep_where(applied: Bool[Tensor, ""], statistics: list[Tensor], before: list[Tensor]) -> None:
    """Put back what was before unless the step was applied."""
    for now, then in zip(statistics, before, strict=True):
        now.copy_(torch.where(applied, now, then))
