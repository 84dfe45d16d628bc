"""When a run is saved, what is saved of it, and how it is put back to there.

A checkpoint that cannot be written does not end a run: it is told, and the run goes on. Only the
last one, at the end or when asked to stop, must be written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

from ono.data.store import Dataset
from ono.errors import CheckpointError, OnoError
from ono.evaluate.operator import Operator
from ono.train import checkpoint as checkpoints
from ono.train.randomness import Randomness
from ono.train.recipe import Recipe
from ono.train.run import RECIPE, Run
from ono.train.state import State
from ono.train.step import Step


class Saves:
    """The checkpoints of one run: its step, its random numbers, and the state of its loop."""

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        step: Step,
        random: Randomness,
        warn: Callable[[str], None],
    ) -> None:
        self.run, self.recipe, self.step, self.random, self.warn = run, recipe, step, random, warn
        self.failed = 0
        self.saved_at = time.monotonic()
        self.newest: tuple[int, Path] | None = None

    @property
    def due(self) -> bool:
        """Whether the last save is longer ago than a run may lose."""
        return time.monotonic() - self.saved_at > 60 * self.recipe.train.checkpoint_minutes

    def save(self, state: State, *, best: bool = False, must: bool = False) -> Path | None:
        """Write a checkpoint and return it; None if that failed and it was not a `must`."""
        content = {
            **asdict(state),
            "metrics_bytes": self.run.metrics_bytes(),
            **self.random.state(),
            "step_state": self.step.state(),
        }
        try:
            saved = checkpoints.save(self.run.checkpoints, state.step, self.step.evaluated, content)
            if best:
                checkpoints.mark_best(saved, state.best)
            checkpoints.purge(self.run.checkpoints, self.recipe.train.keep)
        except OSError as error:
            self.failed += 1
            reason = f"checkpoint at step {state.step} could not be written: {error}"
            if must:
                raise OnoError(
                    f"{reason}; last good checkpoint: {self.last_good()}; make room, then continue "
                    f"with `{self.run.again}`"
                ) from None
            self.warn(f"{reason}; training goes on")
            return None
        self.saved_at, self.newest = time.monotonic(), (state.step, saved)
        return saved

    def at(self, step: int) -> Path | None:
        """Return the checkpoint of a step if it is the newest one written here."""
        newest, saved = self.newest or (None, None)
        return saved if newest == step else None

    def last_good(self) -> str:
        """Name the newest whole checkpoint, for messages."""
        try:
            return str(checkpoints.latest(self.run.checkpoints)[0])
        except CheckpointError:
            return "none was written yet"

    def kept(self, per_epoch: int) -> str:
        """Say from where a run that ends now can go on, for messages."""
        try:
            newest, _ = checkpoints.latest(self.run.checkpoints)
        except CheckpointError:
            return "nothing, as no checkpoint was written yet"
        step = checkpoints.step_of(newest)
        return f"{newest} (step {step}, epoch {-(-step // per_epoch)})"

    def restore(self, path: Path, dataset: Dataset) -> State:
        """Put run, step and random numbers back to a checkpoint; return where the loop was."""
        content = checkpoints.read_state(path)
        operator = Operator.load(path, self.random.device)
        operator.refuse_other_data(dataset)
        if operator.card.recipe_sha256 != self.recipe.sha256:
            raise CheckpointError(
                f"{path} was written with another recipe than {self.run.path / RECIPE} holds now; "
                "restore that file, or start a new run with `ono train`"
            )
        try:
            self.step.operator.load_state_dict(operator.state_dict())
            self.step.restore(content["step_state"])
            self.random.restore(content)
            length = int(content["metrics_bytes"])
            state = State(**{field.name: content[field.name] for field in fields(State)})
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{path} does not fit this run: {error!r}") from None
        self.run.truncate_metrics(length)
        self._rewind(path, state)
        self.run.event("resume", checkpoint=path.name)
        return state

    def _rewind(self, path: Path, state: State) -> None:
        """Drop what a later part of the run left, and point at the best of what remains."""
        directory = self.run.checkpoints
        if state.epoch < self.recipe.train.epochs:
            self.run.forget_result()
        checkpoints.rewind(directory, state.step)
        just_validated = state.position == 0 and state.epoch == state.best_epoch
        if just_validated and path.resolve().parent == directory.resolve():
            checkpoints.mark_best(path, state.best)  # a crash may have come before this
        elif checkpoints.best(directory) is None:
            state.best, state.best_epoch = math.inf, 0
