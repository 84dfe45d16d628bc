"""When a run is saved, what is saved of it, and how it is put back to there.

A checkpoint that cannot be written does not end a run: it is told, and the run goes on. Only the
last one, at the end or when asked to stop, must be written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ono.data.store import Dataset
from ono.errors import CheckpointError, OnoError
from ono.evaluate.operator import Operator
from ono.train import checkpoint as checkpoints
from ono.train.evaluations import keep_evaluations
from ono.train.randomness import Randomness
from ono.train.recipe import Recipe
from ono.train.run import RECIPE, Run
from ono.train.state import State
from ono.train.step import Step


@dataclass(frozen=True, slots=True)
class WentBack:
    """The step that a run went back to, and the error of its checkpoint if that was the best."""

    step: int
    best: tuple[Path, float] | None = None


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
        self.went_back: WentBack | None = None

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
            self.drop_later(saved)
            if best:
                checkpoints.mark_best(saved, state.best)
            checkpoints.purge(self.run.checkpoints, self.recipe.train.keep)
            keep_evaluations(self.run.path, checkpoints.saved(self.run.checkpoints))
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
        """Return the checkpoint of a step if it is the newest one written or resumed here."""
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

    def begin_again(self) -> None:
        """Start over a run that has no checkpoint."""
        self.run.go_back(0)
        self.went_back = WentBack(0)

    def restore(self, path: Path, dataset: Dataset) -> State:
        """Put step and random numbers back to a checkpoint; return where the loop was.

        What the run has after it stays until the first new checkpoint takes its place.
        """
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
        self.run.go_back(length)
        self._go_back(path, state)
        self.run.event("resume", checkpoint=path.name)
        return state

    def _go_back(self, path: Path, state: State) -> None:
        """Remember where the run goes on, with the best of what it will keep."""
        directory = self.run.checkpoints
        best: tuple[Path, float] | None = None
        own = path.resolve().parent == directory.resolve()
        if own:
            self.newest = (state.step, path)
        if own and state.position == 0 and state.epoch == state.best_epoch:
            best = path, state.best  # to be marked, as a crash may have come before that
        else:
            marked = checkpoints.best(directory)
            if marked is None or marked in checkpoints.later(directory, state.step):
                state.best, state.best_epoch = math.inf, 0
        self.went_back = WentBack(state.step, best)

    def drop_later(self, saved: Path | None = None) -> None:
        """Drop what a run had after the place it went back to, but for what it saved since."""
        if self.went_back is None:
            return
        directory, step = self.run.checkpoints, self.went_back.step
        earlier = set(checkpoints.saved(directory)) - set(checkpoints.later(directory, step))
        keep_evaluations(self.run.path, earlier)
        checkpoints.rewind(directory, step, keep=saved)
        self.run.drop_later()
        if self.went_back.best is not None:
            checkpoints.mark_best(*self.went_back.best)
        self.went_back = None
