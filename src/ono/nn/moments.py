"""Means over points and samples that a layer needs at training and at evaluation.

Batch statistics are right for the step they belong to and wrong a few steps later: with the
running mean of the released code, test error was seen ten times worse than with the same
weights and the exact mean over the training set. So a `Moments` knows three means: of this batch
(never stored), a running one (for watching, and for the printed form of the paper) and the exact
one, filled by a calibration pass before every evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ono.errors import NotCalibrated

State = Literal["fresh", "stale", "calibrated"]
_STATES: tuple[State, ...] = get_args(State)


class Moments(nn.Module):
    """Hold the running and the exact mean of one float64 statistic.

    Sums arrive through `observe`. At the end of a training step they are folded into the running
    means, by `MomentStack.fold` or `commit`; a calibration pass ends with `settle`, which makes
    them the exact mean. Sums add over batches, chunks and ranks, so the result does not depend on
    how the data was cut.
    """

    running: Tensor
    updates: Tensor
    exact: Tensor
    total: Tensor
    weight: Tensor

    def __init__(self, untrained: Float[Tensor, "*shape"], momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.state: State = "fresh"
        untrained = untrained.double()
        self.register_buffer("running", torch.zeros_like(untrained))
        self.register_buffer("updates", torch.zeros((), dtype=torch.float64))
        self.register_buffer("exact", untrained.clone())
        self.register_buffer("total", torch.zeros_like(untrained), persistent=False)
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64), persistent=False)

    def get_extra_state(self) -> Tensor:
        """Return whether the exact mean belongs to the present weights, as a tensor."""
        return torch.tensor(_STATES.index(self.state), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over what `get_extra_state` returned."""
        self.state = _STATES[int(state)]

    @torch.no_grad()
    def observe(self, total: Float[Tensor, "*shape"], weight: int) -> None:
        """Add the sums of one batch."""
        self.total += total.detach()
        self.weight += weight

    @torch.no_grad()
    def reset(self) -> None:
        """Forget the sums."""
        self.total.zero_()
        self.weight.zero_()

    @torch.no_grad()
    def settle(self) -> None:
        """End a calibration pass: the sums become the exact mean."""
        self.exact.copy_(self.total / self.weight)
        self.state = "calibrated"
        self.reset()

    def blend(self, mean: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the running mean as it will be once this batch is folded in, without gradient."""
        blend = self.momentum * self.running + (1 - self.momentum) * mean.detach()
        return blend / (1 - self.momentum ** (self.updates + 1))

    def recorded(self) -> Float[Tensor, "*shape"]:
        """Return the running mean corrected for its start, or the untrained value before it."""
        corrected = self.running / (1 - self.momentum ** self.updates.clamp_min(1))
        return torch.where(self.updates > 0, corrected, self.exact)

    def known(self) -> Float[Tensor, "*shape"]:
        """Return the exact mean, or refuse when training has moved on since it was computed."""
        if self.state == "stale":
            raise NotCalibrated(
                "the model was trained since its covariance was last computed; run "
                "ono.calibrate(model, batches) over the training data before evaluating it, or "
                'set eval_covariance="ema" to use the running estimate; an interrupted run is '
                "finished with `ono resume`"
            )
        return self.exact


class MomentStack:
    """The `Moments` of all layers in one stretch of memory, of which theirs become views.

    Their matrices are small, and each operation costs time: all are folded in at once.
    """

    total: Tensor
    weight: Tensor
    running: Tensor
    updates: Tensor

    def __init__(self, parts: Sequence[Moments]) -> None:
        self.momentum = parts[0].momentum
        for name in ("total", "weight", "running", "updates"):
            whole = torch.stack([getattr(part, name) for part in parts])
            setattr(self, name, whole)
            for part, view in zip(parts, whole.unbind(), strict=True):
                setattr(part, name, view)

    def fold(self, applied: Bool[Tensor, ""]) -> None:
        """Fold the sums into the running means if the step was applied, and forget them."""
        _fold(self, applied)


@torch.no_grad()
def observe_all(
    parts: Sequence[Moments], totals: Float[Tensor, parts * shape], weight: int
) -> None:
    """Add the sums of one batch to several `Moments`."""
    torch._foreach_add_([part.total for part in parts], list(totals.detach().unbind()))
    torch._foreach_add_([part.weight for part in parts], weight)


def commit(module: nn.Module, applied: Bool[Tensor, ""] | bool = True) -> None:
    """End a step of a training loop of your own, which needs it only with covariance="ema".

    The sums of every `Moments` inside are folded into its running mean, unless the step was not
    applied.
    """
    parts = [part for part in module.modules() if isinstance(part, Moments)]
    if parts:
        applied = torch.as_tensor(applied, device=parts[0].weight.device)
        for part in parts:
            _fold(part, applied)


@torch.no_grad()
def _fold(part: Moments | MomentStack, applied: Bool[Tensor, ""]) -> None:
    seen = applied & (part.weight > 0)
    wide = (*seen.shape, *(1,) * (part.total.ndim - seen.ndim))
    mean = part.total / part.weight.reshape(wide)
    # A batch that made the step fail may hold NaN: `where` keeps it out, a product would not.
    blend = part.running.lerp(mean, 1 - part.momentum)
    part.running.copy_(torch.where(seen.reshape(wide), blend, part.running))
    part.updates.add_(seen)
    part.total.zero_()
    part.weight.zero_()
