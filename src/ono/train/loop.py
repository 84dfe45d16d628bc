"""The training loop: one readable file with an explicit state.

    fit(recipe, path)      start a run
    resume(path)           continue one, with the bits it would have had

The validation split chooses the checkpoint; the test split is evaluated once, at the end.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ono.data.batches import load
from ono.data.store import Dataset
from ono.data.task import Views
from ono.device import choose_device, describe_device, matmul_precision
from ono.errors import CheckpointError, Interrupted, NonFiniteStep, OnoError
from ono.evaluate.operator import Operator
from ono.evaluate.score import Score, score
from ono.files import write_text
from ono.nn.whitening import failed_factorisations, orthonormality_defect
from ono.train import checkpoint as checkpoints
from ono.train.execution import Epoch, execution
from ono.train.guard import Guard
from ono.train.prepare import cut, new_operator, refuse_bad_data
from ono.train.recipe import Recipe
from ono.train.run import RECIPE, RESULT, Run, commit
from ono.train.signals import StopRequest, stop_on_signals
from ono.train.state import Event, Kind, Listener, Result, State
from ono.train.step import Step


def fit(recipe: Recipe, path: Path, listeners: Sequence[Listener] = ()) -> Result:
    """Train an operator into a new run directory."""
    run = Run(path)
    dataset = Dataset.open(recipe.data.path)
    device = torch.device(choose_device(recipe.train.device))
    parts = cut(dataset, recipe)
    with run.lock():
        run.refuse_taken()
        refuse_bad_data(parts, recipe)
        training = _Training(run, recipe, parts, device, listeners)
        run.begin(recipe)
        return training.go()


def resume(path: Path, listeners: Sequence[Listener] = (), chosen: Path | None = None) -> Result:
    """Continue a run from its newest whole checkpoint, or from a chosen one.

    A run that ended before it wrote any starts over.
    """
    run = Run(path)
    recipe = run.recipe()
    device = torch.device(choose_device(recipe.train.device))
    parts = cut(Dataset.open(recipe.data.path), recipe)
    with run.lock():
        training = _Training(run, recipe, parts, device, listeners)
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
            run.truncate_metrics(0)
        return training.go()


class _Training:
    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        parts: Views,
        device: torch.device,
        listeners: Sequence[Listener],
    ) -> None:
        self.run, self.recipe, self.device, self.listeners = run, recipe, device, listeners
        self.parts = parts
        self.dataset = parts.train.dataset
        operator = new_operator(recipe, parts.train)
        self.rng = torch.Generator().manual_seed(recipe.seed).get_state()
        self.device_rng = torch.Generator(device).manual_seed(recipe.seed).get_state()
        self.step = Step(operator.to(device), recipe)
        self.step.warn = self.warn
        self.train = load(parts.train, device, recipe.data.memory)
        self.validation = load(parts.validation, device, recipe.data.memory)
        self.state = State()
        self.per_epoch = -(-len(self.train) // recipe.train.batch)
        self.steps = self.per_epoch * recipe.train.epochs
        # A look at the device within an epoch would make the host wait for it.
        self.look_at_every_step = device.type == "cpu"
        seen = 1 if self.look_at_every_step else self.per_epoch
        self.guard = Guard(parts.train, device, seen, recipe)
        self.execution = execution(recipe, self.step, self.train)
        self.saved_at = time.monotonic()
        self.newest: tuple[int, Path] | None = None
        self.failed_saves = 0

    def go(self) -> Result:
        recipe, state = self.recipe, self.state
        if state.epoch == recipe.train.epochs and (done := self.run.result()) is not None:
            raise CheckpointError(
                f"{self.run.path} is finished (test error {done['test']:.4f}); nothing to resume"
            )
        self.run.event("start", step=state.step, device=str(self.device))
        self.emit("start")
        with ExitStack() as stack:
            request = stack.enter_context(stop_on_signals())
            stack.enter_context(torch.random.fork_rng())
            torch.set_rng_state(self.rng)
            if self.device.type == "cuda":  # for operators with dropout
                torch.cuda.set_rng_state(self.device_rng, self.device)
            stack.enter_context(matmul_precision(recipe.train.precision))
            while state.epoch < recipe.train.epochs:
                self.one_epoch(request)
        return self.finish()

    def one_epoch(self, request: StopRequest) -> None:
        state, recipe = self.state, self.recipe
        began = time.monotonic()
        view = self.parts.train
        times = len(view.times) if view.times is not None and view.window is None else None
        epoch = Epoch.of(recipe, state.epoch, len(view), times)
        for part in self.execution.run(epoch.after(state.position, recipe.train.batch)):
            self.guard.remember(state, part)
            state.step += 1
            state.position += 1
            if self.look_at_every_step:
                self.refuse_non_finite()
            self.emit("step")
            last = state.position == self.per_epoch
            if request.signal_number is not None and not last:
                state.seconds += time.monotonic() - began
                self.stop(request.signal_number)
            if not last and self.due():
                self.save()
        self.refuse_non_finite()
        state.epoch, state.position = state.epoch + 1, 0
        self.end_epoch(began)
        if request.signal_number is not None:
            self.stop(request.signal_number)

    def end_epoch(self, began: float) -> None:
        state, train = self.state, self.recipe.train
        if float(self.step.samples) == 0:
            raise NonFiniteStep(f"no step of epoch {state.epoch} was finite; nothing was learned")
        record: dict[str, Any] = {
            "epoch": state.epoch,
            "step": state.step,
            "train": self.step.take_mean_loss(),
            "learning_rate": self.recipe.optimiser.rate(state.step - 1, self.steps),
            "skipped": int(self.step.skipped),
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
        state.seconds += time.monotonic() - began
        self.run.event("epoch", epoch=state.epoch, seconds=round(time.monotonic() - began, 3))
        self.emit("epoch", **record)
        if (validated or self.due()) and self.save(best=better) is None:
            state.best, state.best_epoch = before  # what was not saved cannot be chosen

    def validate(self) -> Score:
        """Compute the covariance exactly, then the errors on the validation split."""
        operator = self.step.evaluated
        operator.calibrate(self.train)
        return score(operator, self.validation)

    def due(self) -> bool:
        return time.monotonic() - self.saved_at > 60 * self.recipe.train.checkpoint_minutes

    def save(self, *, best: bool = False, must: bool = False) -> Path | None:
        state = {
            **asdict(self.state),
            "metrics_bytes": self.run.metrics_bytes(),
            "rng": torch.get_rng_state(),
            "device_rng": self.device_rng_now(),
            "step_state": self.step.state(),
        }
        try:
            saved = checkpoints.save(
                self.run.checkpoints, self.state.step, self.step.evaluated, state
            )
            if best:
                checkpoints.mark_best(saved, self.state.best)
            checkpoints.purge(self.run.checkpoints, self.recipe.train.keep)
        except OSError as error:
            self.failed_saves += 1
            reason = f"checkpoint at step {self.state.step} could not be written: {error}"
            if must:
                raise OnoError(f"{reason}; the last one is {self.last_good()}") from None
            self.warn(f"{reason}; training goes on")
            return None
        self.saved_at, self.newest = time.monotonic(), (self.state.step, saved)
        self.emit("checkpoint", path=str(saved))
        return saved

    def device_rng_now(self) -> Tensor:
        if self.device.type == "cuda":
            return torch.cuda.get_rng_state(self.device)
        return self.device_rng

    def restore(self, path: Path) -> None:
        content = checkpoints.read_state(path)
        operator = Operator.load(path, self.device)
        operator.refuse_other_data(self.dataset)
        if operator.card.recipe_sha256 != self.recipe.sha256:
            raise CheckpointError(
                f"{path} was written with another recipe than {self.run.path / RECIPE} holds now; "
                "restore that file, or start a new run with `ono train`"
            )
        try:
            self.step.operator.load_state_dict(operator.state_dict())
            self.step.restore(content["step_state"])
            self.rng, self.device_rng = content["rng"], content["device_rng"]
            length = int(content["metrics_bytes"])
            self.state = State(**{name: content[name] for name in asdict(self.state)})
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{path} does not fit this run: {error!r}") from None
        self.run.truncate_metrics(length)
        self.rewind(path)
        self.run.event("resume", checkpoint=path.name)

    def rewind(self, path: Path) -> None:
        """Drop what a later part of the run left, and point at the best of what remains."""
        state, directory = self.state, self.run.checkpoints
        checkpoints.rewind(directory, state.step)
        just_validated = state.position == 0 and state.epoch == state.best_epoch
        if just_validated and path.resolve().parent == directory.resolve():
            checkpoints.mark_best(path, state.best)  # a crash may have come before this
        elif checkpoints.best(directory) is None:
            state.best, state.best_epoch = math.inf, 0

    def stop(self, number: int) -> None:
        # Saving the same step twice would take away a whole checkpoint for a moment.
        step, saved = self.newest or (None, None)
        if step != self.state.step:
            saved = self.save(must=True)
        self.run.event("interrupted", signal=number, step=self.state.step)
        raise Interrupted(
            f"stopped at step {self.state.step} of {self.steps}; saved {saved}; continue with "
            f"`ono resume {self.run.path}`",
            number,
        )

    def refuse_non_finite(self) -> None:
        skipped = int(self.step.skipped)
        if skipped > self.recipe.train.skips:
            raise NonFiniteStep(
                f"{self.guard.explain(self.step.operator, skipped, self.recipe.train.skips)}; last "
                f"good checkpoint: {self.last_good()}"
            )

    def last_good(self) -> str:
        try:
            return str(checkpoints.latest(self.run.checkpoints)[0])
        except CheckpointError:
            return "none was written yet"

    def finish(self) -> Result:
        """Evaluate the best checkpoint on the test split, once, and write the result."""
        chosen = checkpoints.best(self.run.checkpoints)
        if chosen is None:
            chosen = self.save(must=True)
            assert chosen is not None
        operator = Operator.load(chosen, self.device)
        test = score(operator, load(self.parts.test, self.device, self.recipe.data.memory))
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else None
        content = {
            "validation": self.state.best,
            "test": test.mean,
            "test_by_channel": {
                channel.name: float(mean)
                for channel, mean in zip(
                    operator.card.outputs, test.channels.double().mean(0), strict=True
                )
            },
            "test_by_time": None if test.frames is None else test.frames.double().mean(0).tolist(),
            "test_errors": dict(zip(test.rows.tolist(), test.errors.tolist(), strict=True)),
            "epoch": self.state.best_epoch,
            "checkpoint": chosen.name,
            "seconds": self.state.seconds,
            "device": describe_device(str(self.device)),
            "peak_memory_bytes": peak,
            "parameters": sum(p.numel() for p in operator.parameters()),
            "recipe_sha256": self.recipe.sha256,
            "dataset_sha256": self.dataset.sha256,
            "seed": self.recipe.seed,
            "commit": commit(),
            "failed_saves": self.failed_saves,
        }
        write_text(self.run.path / RESULT, json.dumps(content, indent=1) + "\n")
        self.run.event("end", test=test.mean, seconds=round(self.state.seconds, 1))
        self.emit("end", test=test.mean, validation=self.state.best)
        return Result(
            self.state.best, test.mean, self.state.best_epoch, self.state.seconds, self.run.path
        )

    def warn(self, message: str) -> None:
        self.run.event("warning", message=message)
        self.emit("warning", message=message)

    def emit(self, kind: Kind, **details: Any) -> None:
        event = Event(kind, self.state, self.steps, self.recipe.train.epochs, details)
        for listener in self.listeners:
            listener(event)
