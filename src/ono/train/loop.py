"""The training loop: one readable file with an explicit state.

    fit(recipe, path)      start a run
    resume(path)           continue one; on a CPU with the bits it would have had

The validation split chooses the checkpoint; the test split is evaluated once, at the end.
"""

from __future__ import annotations

import math
import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ono.data.batches import load
from ono.data.store import Dataset
from ono.data.task import Views
from ono.device import choose_device, matmul_precision
from ono.errors import CheckpointError, Interrupted, NonFiniteStep
from ono.evaluate.score import Score, score
from ono.nn.whitening import failed_factorisations, orthonormality_defect
from ono.train import checkpoint as checkpoints
from ono.train.conclusion import conclude
from ono.train.execution import Epoch, execution
from ono.train.guard import Guard
from ono.train.prepare import cut, data_of, new_operator, refuse_bad_data
from ono.train.randomness import Randomness
from ono.train.recipe import Recipe
from ono.train.run import RECIPE, Run
from ono.train.saves import Saves
from ono.train.signals import StopRequest, stop_on_signals
from ono.train.state import Event, Kind, Listener, Result, State
from ono.train.step import Step


def fit(recipe: Recipe, path: Path | str, listeners: Sequence[Listener] = ()) -> Result:
    """Train an operator into a new run directory.

    Each listener is called with an `Event` at the start, after every step and epoch, at every
    checkpoint, warning and signal, and at the end. The best operator is then in `path` for
    `Operator.load`, and `resume(path)` continues a run that was stopped.
    """
    run = Run(Path(path))
    dataset = Dataset.open(recipe.data.path)
    device = torch.device(choose_device(recipe.train.device))
    parts = cut(dataset, recipe)
    with run.lock():
        run.refuse_taken()
        refuse_bad_data(parts, recipe)
        training = _Training(run, recipe, parts, device, listeners)
        run.begin(recipe)
        return training.go()


def resume(
    path: Path | str,
    listeners: Sequence[Listener] = (),
    chosen: Path | None = None,
    *,
    data: Path | None = None,
) -> Result:
    """Continue a run from its newest whole checkpoint, or from a chosen one.

    `data` is where its dataset was moved to; the recipe stays as it was begun with. A run that
    ended before it wrote any checkpoint starts over. What the run has after the checkpoint stays
    until a new one is saved: if it ends before that, it did not go back.
    """
    run = Run(Path(path))
    recipe = run.recipe()
    device = torch.device(choose_device(recipe.train.device))
    parts = cut(data_of(recipe, data), recipe)
    if data is not None and chosen is None and not checkpoints.saved(run.checkpoints):
        again = shlex.join(("ono", "train", str(run.path / RECIPE), f"data.path={data}"))
        raise CheckpointError(
            f"{path} has no checkpoint that could say whether {data} is its data; start a new run "
            f"with `{again}`"
        )
    with run.lock():
        training = _Training(run, recipe, parts, device, listeners, moved=data)
        if chosen is not None:
            checkpoints.check(chosen)
            training.restore(chosen)
        elif checkpoints.saved(run.checkpoints):
            start, warnings = checkpoints.latest(run.checkpoints)
            for warning in warnings:
                training.warn(f"{warning}; falling back to {start.name}")
            training.restore(start)
        else:
            refuse_bad_data(parts, recipe)
            training.saves.begin_again()
        return training.go()


class _Training:
    """A run under way: what it trains, where it is, and what follows from each event."""

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        parts: Views,
        device: torch.device,
        listeners: Sequence[Listener],
        *,
        moved: Path | None = None,
    ) -> None:
        self.run, self.recipe, self.device, self.listeners = run, recipe, device, listeners
        place = "" if moved is None else f" --data {shlex.quote(str(moved))}"
        self.again = run.again + place
        self.parts = parts
        operator = new_operator(recipe, parts.train)
        self.random = Randomness(recipe.seed, device)
        self.step = Step(operator.to(device), recipe)
        self.step.warn = self.warn
        self.train = load(parts.train, device, recipe.data.memory)
        self.validation = load(parts.validation, device, recipe.data.memory)
        self.state = State()
        self.counted_to = time.monotonic()
        self.per_epoch = -(-len(self.train) // recipe.train.batch)
        self.steps = self.per_epoch * recipe.train.epochs
        # A look at the device within an epoch would make the host wait for it.
        self.look_at_every_step = device.type == "cpu"
        seen = 1 if self.look_at_every_step else self.per_epoch
        self.guard = Guard(parts.train, device, seen, recipe)
        self.execution = execution(recipe, self.step, self.train)
        self.saves = Saves(run, recipe, self.step, self.random, self.warn)

    def restore(self, checkpoint: Path) -> None:
        self.state = self.saves.restore(checkpoint, self.parts.train.dataset)

    def go(self) -> Result:
        try:
            return self.train_and_finish()
        except KeyboardInterrupt:
            self.run.event("interrupted", signal=signal.SIGINT, step=self.state.step)
            raise Interrupted(
                f"stopped at once, at step {self.state.step} of {self.steps}; kept "
                f"{self.saves.kept(self.per_epoch)}; continue with `{self.again}`",
                signal.SIGINT,
            ) from None

    def train_and_finish(self) -> Result:
        recipe, state = self.recipe, self.state
        if state.epoch == recipe.train.epochs and (done := self.run.result()) is not None:
            raise CheckpointError(
                f"{self.run.path} is finished (test error {done['test']:.4f}); nothing to resume"
            )
        where = str(self.parts.train.dataset.path)
        self.run.event("start", step=state.step, device=str(self.device), data=where)
        self.emit("start")
        precision = matmul_precision(recipe.train.precision, self.device)
        with stop_on_signals(self.tell_of_signal) as request, self.random.in_use(), precision:
            while state.epoch < recipe.train.epochs:
                self.one_epoch(request)
        return self.finish()

    def one_epoch(self, request: StopRequest) -> None:
        state, recipe = self.state, self.recipe
        began = self.counted_to = time.monotonic()
        view = self.parts.train
        epoch = Epoch.of(recipe, state.epoch, len(view), view.free_times)
        for part in self.execution.run(epoch.after(state.position, recipe.train.batch)):
            self.guard.remember(state, part)
            state.step += 1
            state.position += 1
            if self.look_at_every_step:
                self.refuse_non_finite()
            self.emit("step")
            last = state.position == self.per_epoch
            if request.signal_number is not None and not last:
                self.stop(request.signal_number)
            if not last and self.saves.due:
                self.save()
        self.refuse_non_finite()
        state.epoch, state.position = state.epoch + 1, 0
        self.end_epoch(began)
        if request.signal_number is not None:
            self.stop(request.signal_number)

    def end_epoch(self, began: float) -> None:
        state, train = self.state, self.recipe.train
        if float(self.step.tally.samples) == 0:
            raise NonFiniteStep(f"no step of epoch {state.epoch} was finite; nothing was learned")
        record: dict[str, Any] = {
            "epoch": state.epoch,
            "step": state.step,
            "train": self.step.tally.take_mean_loss(),
            "learning_rate": self.recipe.optimiser.rate(state.step - 1, self.steps),
            "skipped": int(self.step.tally.skipped),
            "failed_factorisations": failed_factorisations(self.step.operator),
        }
        validated = state.epoch % train.validate_every == 0 or state.epoch == train.epochs
        better, before = False, (state.best, state.best_epoch)
        if validated:
            record["validation"] = self.validate().mean
            if (defect := orthonormality_defect(self.step.evaluated)) is not None:
                record["orthonormality_defect"] = defect
            better = record["validation"] < state.best
            if better:
                state.best, state.best_epoch = record["validation"], state.epoch
        self.run.record(record)
        self.count_time()
        self.run.event("epoch", epoch=state.epoch, seconds=round(time.monotonic() - began, 3))
        self.emit("epoch", **record)
        if (validated or self.saves.due) and self.save(best=better) is None:
            state.best, state.best_epoch = before  # what was not saved cannot be chosen

    def validate(self) -> Score:
        """Compute the covariance exactly, then the errors on the validation split.

        With all digits, as in any evaluation after training.
        """
        operator = self.step.evaluated
        with matmul_precision("fp32", self.device):
            operator.calibrate(self.train)
            return score(operator, self.validation)

    def count_time(self) -> None:
        """Add the time since it was counted last to that of the run."""
        now = time.monotonic()
        self.state.seconds += now - self.counted_to
        self.counted_to = now

    def save(self, *, best: bool = False, must: bool = False) -> Path | None:
        self.count_time()
        saved = self.saves.save(self.state, best=best, must=must)
        if saved is not None:
            self.emit("checkpoint", path=str(saved))
        return saved

    def stop(self, number: int) -> None:
        # Saving the same step twice would take away a whole checkpoint for a moment.
        saved = self.saves.at(self.state.step) or self.save(must=True)
        self.run.event("interrupted", signal=number, step=self.state.step)
        raise Interrupted(
            f"stopped at step {self.state.step} of {self.steps}; saved {saved}; continue with "
            f"`{self.again}`",
            number,
        )

    def tell_of_signal(self) -> None:
        kept = self.saves.kept(self.per_epoch)
        self.emit(
            "signal",
            message="stopping after this step, which is saved; Ctrl-C again stops at once and "
            f"keeps {kept}",
        )

    def refuse_non_finite(self) -> None:
        skipped = int(self.step.tally.skipped)
        if skipped > self.recipe.train.skips:
            raise NonFiniteStep(
                f"{self.guard.explain(self.step.operator, skipped, self.recipe.train.skips)}; last "
                f"good checkpoint: {self.saves.last_good()}"
            )

    def finish(self) -> Result:
        """Evaluate the best checkpoint on the test split, once, and write the result."""
        if self.saves.went_back is not None and self.saves.at(self.state.step) is None:
            self.save(must=True)
        self.saves.drop_later()
        chosen = checkpoints.best(self.run.checkpoints)
        if chosen is None and math.isfinite(self.state.best):
            raise CheckpointError(
                f"the best checkpoint of {self.run.path}, of epoch {self.state.best_epoch}, is not "
                "there any more; the newest can be evaluated with `ono eval`"
            )
        chosen = chosen or self.save(must=True)
        assert chosen is not None
        result = conclude(
            self.run,
            self.recipe,
            self.state,
            chosen=chosen,
            test=self.parts.test,
            device=self.device,
            failed_saves=self.saves.failed,
            micro_batch=self.step.micro_batch,
        )
        self.run.event("end", test=result.test, seconds=round(result.seconds, 1))
        self.emit("end", test=result.test, validation=result.validation)
        return result

    def warn(self, message: str) -> None:
        self.run.event("warning", message=message)
        self.emit("warning", message=message)

    def emit(self, kind: Kind, **details: Any) -> None:
        event = Event(kind, self.state, self.steps, self.recipe.train.epochs, details)
        for listener in self.listeners:
            listener(event)
