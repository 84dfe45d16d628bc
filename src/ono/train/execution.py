"""How the steps of an epoch are executed: eager, compiled, or captured.

A small operator spends most of a step in starting kernels. A captured step - gather, forward,
loss, backward, clipping, optimiser, averages and counters - is recorded once as a CUDA graph and
replayed with one launch. What changes from step to step lies on the device before the epoch
begins: the order of the samples, the learning rates, the times. A counter on the device says
which of them are next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ono.data.batches import Resident, Source, epoch_order, parts_of
from ono.data.info import Array
from ono.errors import RecipeError
from ono.train.micro_batch import in_memory
from ono.train.recipe import Recipe
from ono.train.step import Step, at_times

Form = Literal["eager", "compiled", "captured"]

# CUDA wants the kernels of a recording to have run before; compilation happens here too.
_TRIALS = 3
# Steps, or points predicted in all of them, after which a minute of compilation has paid.
_MANY_STEPS = 20_000
_MANY_POINTS = 200_000_000


@dataclass(frozen=True, slots=True)
class Epoch:
    """What the steps of an epoch see: samples, learning rates, and times if some are drawn."""

    order: Array  # [samples]
    rates: Array  # [steps]
    times: Array | None = None  # [steps times]

    @classmethod
    def of(cls, recipe: Recipe, epoch: int, samples: int, times: int | None = None) -> Epoch:
        """Return an epoch as the recipe and its number determine it, the same on any machine."""
        steps = -(-samples // recipe.train.batch)
        total, first = steps * recipe.train.epochs, epoch * steps
        rates = np.array([recipe.optimiser.rate(first + i, total) for i in range(steps)], "<f4")
        chosen = None
        if recipe.train.times is not None and times is not None:
            count = min(recipe.train.times, times)
            draw = np.random.default_rng(np.random.SeedSequence((recipe.seed, epoch, 1)))
            chosen = np.stack([np.sort(draw.permutation(times)[:count]) for _ in range(steps)])
        return cls(epoch_order(recipe.seed, epoch, samples), rates, chosen)

    def after(self, steps: int, batch: int) -> Epoch:
        """Return what is left after so many steps."""
        times = None if self.times is None else self.times[steps:]
        return Epoch(self.order[steps * batch :], self.rates[steps:], times)


class OneByOne:
    """Take steps as Python runs them, from data anywhere."""

    def __init__(self, step: Step, source: Source, batch: int, form: Form = "eager") -> None:
        self.form, self.step, self.source, self.batch = form, step, source, batch

    def run(self, epoch: Epoch) -> Iterator[Array]:
        """Take the steps one by one; yield after each which samples it saw."""
        device = self.step.rate.device
        batches = self.source.batches(epoch.order, self.batch)
        for count, (part, batch) in enumerate(
            zip(parts_of(epoch.order, self.batch), batches, strict=True)
        ):
            self.step.rate.fill_(float(epoch.rates[count]))
            times = None if epoch.times is None else torch.from_numpy(epoch.times[count]).to(device)
            in_memory(self.step, len(part), partial(self.step, at_times(batch, times)))
            yield part


class Captured:
    """Replay recorded steps; each size of batch has a recording."""

    form: Form = "captured"

    def __init__(self, step: Step, source: Resident, batch: int) -> None:
        self.step, self.source, self.batch = step, source, batch
        device, steps = step.rate.device, -(-len(source) // batch)
        # A recording knows addresses: what it reads must live as long as it.
        self.order = torch.zeros(steps, batch, dtype=torch.int64, device=device)
        self.rates = torch.zeros(steps, device=device)
        self.times: Tensor | None = None
        # With one entry, not none: to index by a scalar torch asks the device for its value.
        self.next_step = torch.zeros(1, dtype=torch.int64, device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def run(self, epoch: Epoch) -> Iterator[Array]:
        """Take the steps one by one; yield after each which samples it saw."""
        self._upload(epoch)
        for part in parts_of(epoch.order, self.batch):
            if len(part) not in self.graphs:
                in_memory(self.step, len(part), partial(self._record, len(part)))
            self.graphs[len(part)].replay()
            self.step.outdate()
            yield part

    def _upload(self, epoch: Epoch) -> None:
        order = torch.from_numpy(epoch.order).to(self.order.device)
        self.order.view(-1)[: len(order)] = order
        self.rates[: len(epoch.rates)] = torch.from_numpy(epoch.rates).to(self.rates.device)
        if epoch.times is not None:
            table = torch.from_numpy(epoch.times).to(self.order.device)
            if self.times is None:
                self.times = table.new_zeros(len(self.rates), table.shape[1])
            self.times[: len(table)] = table
        self.next_step.zero_()

    def _body(self, size: int) -> Callable[[], None]:
        def body() -> None:
            torch.index_select(self.rates, 0, self.next_step, out=self.step.rate.view(1))
            batch = self.source.pick(self.order[self.next_step].squeeze(0)[:size])
            chosen = None if self.times is None else self.times[self.next_step].squeeze(0)
            self.step(at_times(batch, chosen))
            self.next_step.add_(1)

        return body

    def _record(self, size: int) -> None:
        """Record a step for batches of a size; what the trials before it changed is put back."""
        body, device = self._body(size), self.order.device
        # Detached: a copy with a history would tie the weights to the stream it was made on.
        known = {id(x): x.detach().clone() for x in [*self.step.tensors(), self.next_step]}
        random = torch.cuda.get_rng_state(device)
        stream = torch.cuda.Stream(device)
        try:
            self._try_out(body, stream)
            self._restore(known)
            graph = torch.cuda.CUDAGraph()
            self.step.flat.forget_gradients()
            # On the stream of the trials: libraries keep handles and workspaces for each stream.
            with torch.cuda.graph(graph, stream=stream):
                body()
        finally:
            self._restore(known)
            self.step.remember_norms()  # those of a recording were never computed
            torch.cuda.set_rng_state(random, device)
        self.graphs[size] = graph

    def _try_out(self, body: Callable[[], None], stream: torch.cuda.Stream) -> None:
        current = torch.cuda.current_stream(self.order.device)
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(_TRIALS):
                    self.next_step.zero_()
                    body()
        finally:
            current.wait_stream(stream)

    @torch.no_grad()
    def _restore(self, known: dict[int, Tensor]) -> None:
        for tensor in [*self.step.tensors(), self.next_step]:
            before = known.get(id(tensor))
            if before is None:  # of the optimiser, made by the trials
                tensor.zero_()
            else:
                tensor.copy_(before)


def execution(recipe: Recipe, step: Step, source: Source) -> OneByOne | Captured:
    """Choose how to execute: captured where a GPU holds the data, eager elsewhere."""
    choice, batch = recipe.train.execution, recipe.train.batch
    resident = isinstance(source, Resident) and step.rate.is_cuda
    if choice == "captured" and not resident:
        raise RecipeError(
            "train.execution=captured needs a GPU that holds the training data; use compiled, "
            "eager or auto, or data.memory=resident"
        )
    captured = choice == "captured" or (choice == "auto" and resident)
    compiled = recipe.train.compile
    if compiled is None:
        compiled = captured and not step.fused and _is_long(recipe, source)
    compiled = compiled or choice == "compiled"
    if compiled:
        # What was compiled for other runs of this process would count against a limit of dynamo.
        torch.compiler.reset()
        # Fused kernels stay as they are: there the graph has gaps. Tensors are not padded: with
        # that torch 2.11 gave the gradient of a 1x1 convolution on 94 x 94 nodes too little memory.
        step.losses = torch.compile(
            step.losses,
            fullgraph=not step.fused,
            dynamic=False,
            options={"comprehensive_padding": False},
        )
    if captured and isinstance(source, Resident):
        return Captured(step, source, batch)
    return OneByOne(step, source, batch, "compiled" if compiled else "eager")


def _is_long(recipe: Recipe, source: Source) -> bool:
    """Say whether a run is so long that compiling its step is worth the while."""
    steps = len(source) // recipe.train.batch * recipe.train.epochs
    points = source.all.target[..., 0].numel() if isinstance(source, Resident) else 0
    return steps >= _MANY_STEPS or points * recipe.train.epochs >= _MANY_POINTS
