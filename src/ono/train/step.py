"""One training step: forward, loss, backward, clip, update - and never a non-finite one.

Whether a step counts is decided on the device by one flag made from the loss and the norm of the
gradient. It gates the weights, the moments of the optimiser, the averaged weights and the running
covariance, so nothing waits for the host and nothing bad is ever applied.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any, Literal, TypedDict

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ono.data.view import Batch
from ono.data.windows import windows
from ono.device import has_bfloat16, shortage
from ono.errors import OutOfMemory, RecipeError
from ono.evaluate.metrics import channel_errors, gradient_relative_l2, relative_l2
from ono.evaluate.operator import Operator
from ono.nn.moments import Moments
from ono.nn.recompute import recompute_blocks
from ono.train.adamw import FlatAdamW
from ono.train.batch_norms import keep_where, running_statistics
from ono.train.flat_parameters import FlatParameters
from ono.train.kernels import choose_kernels
from ono.train.recipe import Recipe
from ono.train.relative_error import quick_relative_l2
from ono.train.tally import Tally

Losses = Callable[[Operator, Batch], Tensor]
Metric = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def sample_losses(
    operator: Operator,
    batch: Batch,
    *,
    gradient_loss: float = 0.0,
    by_channel: bool = False,
    forcing: Literal["teacher", "free"] = "teacher",
    error: Metric = relative_l2,
) -> Float[Tensor, " batch"]:
    """Return each sample's relative error in physical units, with the H1 term if asked for.

    `by_channel` measures every output alone, so that small ones count as much as large ones. A
    roll-out has one error a step, and their mean is the sample's; with `teacher` forcing every
    step starts from true frames, with `free` from the ones predicted before it.
    """
    if batch.history is None:
        pred, target, domain, steps = operator.answer(batch), batch.target, batch.domain, 1
    else:
        steps = batch.target.shape[1]
        domain, values, target = windows(batch)
        if forcing == "teacher":
            pred = operator(domain, values)
        else:
            pred = operator.answer(batch).flatten(0, 1)
    if by_channel:
        losses = channel_errors(pred, target, domain.mask).mean(1)
    else:
        losses = error(pred, target, domain.mask)
    if gradient_loss > 0 and domain.shape is not None:
        times = pred.shape[1] if pred.ndim == 4 else 1
        ours, theirs = (x.flatten(0, 1) if x.ndim == 4 else x for x in (pred, target))
        slopes = gradient_relative_l2(ours, theirs, domain.shape)
        losses = losses + gradient_loss * slopes.unflatten(0, (-1, times)).mean(1)
    return losses if steps == 1 else losses.unflatten(0, (-1, steps)).mean(1)


def at_times(batch: Batch, chosen: Int[Tensor, " times"] | None) -> Batch:
    """Return a timed batch at the chosen times only, or as it is."""
    if chosen is None or batch.times is None:
        return batch
    return replace(batch, times=batch.times[chosen], target=batch.target[:, chosen])


class LossOptions(TypedDict):
    """What a recipe says about the loss."""

    gradient_loss: float
    by_channel: bool
    forcing: Literal["teacher", "free"]


def loss_options(recipe: Recipe) -> LossOptions:
    """Return the keywords of `sample_losses` that a recipe asks for."""
    return {
        "gradient_loss": recipe.train.gradient_loss,
        "by_channel": recipe.train.loss == "channels",
        "forcing": recipe.forcing,
    }


class Step:
    """The training step and everything it changes.

    The learning rate is a tensor on the device: a recorded step reads it anew at every replay.
    """

    def __init__(self, operator: Operator, recipe: Recipe) -> None:
        self.operator = operator
        self.recipe = recipe
        device = next(operator.parameters()).device
        self.rate = torch.tensor(recipe.optimiser.learning_rate, device=device)
        trained = [part.requires_grad for part in operator.parameters()]  # others stay as they are
        self.flat = FlatParameters(compress(operator.parameters(), trained))
        self.optimiser = FlatAdamW(
            [self.flat.whole],
            lr=self.rate,
            weight_decay=recipe.optimiser.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )
        if recipe.train.recompute and not recompute_blocks(operator):
            raise RecipeError(
                f"train.recompute is true, but {recipe.model.name} has no blocks that can be "
                "computed again; set it to false, and train.micro_batch to save memory"
            )
        self.fused = self.optimiser.quick = choose_kernels(operator, recipe, device)
        self.micro_batch = recipe.train.micro_batch
        self.warn: Callable[[str], None] = lambda message: None
        self.tally = Tally(_moments(operator), device, quick=self.fused)
        error = quick_relative_l2 if self.fused else relative_l2
        self.losses: Losses = partial(sample_losses, **loss_options(recipe), error=error)
        self.batch_norms = running_statistics(operator)
        self.remember_norms()
        self.average: Operator | None = None
        if recipe.train.weight_average > 0:
            self.average = copy.deepcopy(operator).requires_grad_(False)
            self.flat_average = FlatParameters(compress(self.average.parameters(), trained))
        self.applied = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def evaluated(self) -> Operator:
        """The operator that is evaluated and saved: the averaged one if weights are averaged."""
        return self.operator if self.average is None else self.average

    def __call__(self, batch: Batch) -> None:
        """Take one step on a batch; nothing here waits for the device."""
        self.operator.train()
        self.flat.forget_gradients()
        self.remember_norms()
        losses = self._backward(batch)
        applied = self._update(losses)
        try:
            self._follow(losses, applied)
        except (RuntimeError, MemoryError) as error:  # too late to try the same batch in parts
            if (reason := shortage(error)) is None:
                raise
            raise OutOfMemory(
                f"memory ran out after an update ({reason}); resume from the last checkpoint "
                "with less in memory: train.recompute=true, train.streams=false, "
                "train.precision=bf16 or a smaller train.micro_batch"
            ) from None

    def _follow(self, losses: Float[Tensor, " batch"], applied: Bool[Tensor, ""]) -> None:
        """Let all that follows the weights follow an update."""
        self.tally.add(losses, applied)
        keep_where(applied, self.batch_norms, self.norms_before)
        self._update_average(applied)
        self.outdate()

    def remember_norms(self) -> None:
        """Keep what the running statistics are now, to go back to if a step is not applied."""
        self.norms_before = [statistic.clone() for statistic in self.batch_norms]

    def outdate(self) -> None:
        """Say that exact means no longer belong to the weights, which a replay cannot."""
        for module in filter(None, (self.operator, self.average)):
            for part in _moments(module):
                part.state = "stale"

    @torch.no_grad()
    def forget(self) -> None:
        """Drop what a step that failed before its update has left."""
        self.flat.forget_gradients()
        for part in _moments(self.operator):
            part.reset()
        for now, before in zip(self.batch_norms, self.norms_before, strict=True):
            now.copy_(before)

    @torch.no_grad()
    def _update(self, losses: Float[Tensor, " batch"]) -> Bool[Tensor, ""]:
        """Update the weights if loss and gradient are finite; return whether they are."""
        norm = torch.linalg.vector_norm(self.flat.gather())
        return self.optimiser.update(losses, norm, self.recipe.optimiser.clip)

    def _backward(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Leave the gradient of the mean loss in the weights; return the losses."""
        parts = batch.split(self.micro_batch)
        found = []
        for part in parts:
            with self._precision(part.values.device):
                losses = self.losses(self.operator, part)
            loss = losses.mean()
            if len(parts) > 1:
                loss = loss * (len(losses) / len(batch.values))
            loss.backward()
            found.append(losses.detach())
        return found[0] if len(found) == 1 else torch.cat(found)

    def tensors(self) -> list[Tensor]:
        """Return every tensor a step changes, so that a trial can be undone."""
        parts: list[Tensor] = [*self.tally.counters().values(), self.applied]
        for module in filter(None, (self.operator, self.average)):
            parts += [*module.parameters(), *module.buffers()]
        for state in self.optimiser.state.values():
            parts += [value for value in state.values() if isinstance(value, Tensor)]
        return parts

    def state(self) -> dict[str, Any]:
        """Return everything besides the evaluated operator that the next step depends on."""
        moments = self.optimiser.state_dict()["state"]
        raw = None if self.average is None else _plain(self.operator.state_dict())
        return {
            "moments": {str(k): _plain(v) for k, v in moments.items()},
            "raw_model": raw,
            "micro_batch": self.micro_batch,
            **_plain({**self.tally.counters(), "applied": self.applied}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned; the evaluated operator is loaded already."""
        if self.average is not None:
            self.average.load_state_dict(self.operator.state_dict())
            self.operator.load_state_dict(state["raw_model"])
        content = self.optimiser.state_dict()
        content["state"] = {int(k): v for k, v in state["moments"].items()}
        self.optimiser.load_state_dict(content)
        for group in self.optimiser.param_groups:  # loading has put a copy there
            group["lr"] = self.rate
        self.micro_batch = state["micro_batch"]
        for name, counter in (*self.tally.counters().items(), ("applied", self.applied)):
            counter.copy_(state[name])

    @torch.no_grad()
    def _update_average(self, applied: Tensor) -> None:
        if self.average is None:
            return
        self.applied += applied
        # The first weights are forgotten quickly: n steps know nothing of a longer average.
        start = (1 + self.applied) / (10 + self.applied)
        share = (1 - start.clamp_max(self.recipe.train.weight_average)) * applied
        mean = self.flat_average.whole
        mean.lerp_(self.flat.whole, share.to(mean.dtype))
        for mine, theirs in zip(_moments(self.average), _moments(self.operator), strict=True):
            mine.running.copy_(theirs.running)
            mine.updates.copy_(theirs.updates)
        for old, now in zip(running_statistics(self.average), self.batch_norms, strict=True):
            old.copy_(now)

    def _precision(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if self.recipe.train.precision == "bf16" and has_bfloat16(device.type):
            return torch.autocast(device.type, torch.bfloat16)
        return contextlib.nullcontext()


def _moments(operator: Operator) -> list[Moments]:
    return [part for part in operator.modules() if isinstance(part, Moments)]


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.detach().cpu().clone() if isinstance(v, Tensor) else v for k, v in state.items()}
