"""What a training step adds up besides its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ono.nn.moments import Moments, MomentStack

_COUNTERS = ("loss_sum", "samples", "skipped")
_BLOCK = 1024


class Tally:
    """The losses since somebody asked, steps that were skipped, and the running covariances.

    All of it lies on the device and is changed there; only `take_mean_loss` waits for it.
    """

    def __init__(self, moments: Sequence[Moments], device: torch.device, *, quick: bool) -> None:
        """Take over the moments of all layers; `quick` uses a kernel, which needs Triton."""
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.samples = torch.zeros((), dtype=torch.float64, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self.moments = MomentStack(moments) if moments else None
        self.quick = quick

    @torch.no_grad()
    def add(self, losses: Float[Tensor, " batch"], applied: Bool[Tensor, ""]) -> None:
        """Count a step, applied or not, and what its layers observed."""
        if self.quick:
            self._add(losses, applied)
            return
        self.loss_sum += torch.where(applied, losses, 0).sum(dtype=torch.float64)
        self.samples.add_(applied, alpha=len(losses))
        self.skipped += ~applied
        if self.moments is not None:
            self.moments.fold(applied)

    def _add(self, losses: Tensor, applied: Tensor) -> None:
        import triton

        from ono.train.tally_triton import tally

        layers, size, momentum, samples = 0, 0, 0.0, len(losses)
        stacks: list[Tensor | None] = [None] * 4
        if self.moments is not None:
            stack = self.moments
            layers, size, momentum = len(stack.total), stack.total[0].numel(), stack.momentum
            stacks = [stack.total, stack.weight, stack.running, stack.updates]
        with torch.cuda.device_of(losses):
            tally[layers + 1,](
                losses, applied, self.loss_sum, self.samples, self.skipped, *stacks, size,
                momentum=momentum, samples=samples, many=triton.next_power_of_2(samples),
                block=_BLOCK, num_warps=1,
            )  # fmt: skip

    def take_mean_loss(self) -> float:
        """Return the mean loss since the last call and start over (waits for the device)."""
        mean = float(self.loss_sum / self.samples.clamp_min(1))
        self.loss_sum.zero_()
        self.samples.zero_()
        return mean

    def counters(self) -> dict[str, Tensor]:
        """Return what is counted, by name."""
        return {name: getattr(self, name) for name in _COUNTERS}
