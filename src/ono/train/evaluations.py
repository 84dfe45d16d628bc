"""Evaluate a run and keep the errors beside it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from ono.data.batches import load
from ono.data.info import Array
from ono.data.view import View
from ono.device import choose_device
from ono.errors import CheckpointError, DataError
from ono.evaluate.calibrate import is_calibrated
from ono.evaluate.card import find_operator
from ono.evaluate.given import as_queries
from ono.evaluate.operator import Operator
from ono.evaluate.resolution import Evaluation, at_points, on_grid
from ono.files import write_text
from ono.train.checkpoint import saved
from ono.train.prepare import cut, data_of
from ono.train.run import Run

FILE, LOCK_FILE = "evaluations.json", ".evaluations.lock"


class Row(BaseModel, frozen=True, extra="forbid"):
    """One evaluation: where, on what, and the errors over samples."""

    kind: str
    points: int
    resolution: tuple[int, ...] | None
    split: str
    mean: float
    median: float
    worst: float
    samples: int
    seconds: float
    checkpoint: str = ""
    source: str = ""
    """Where query points came from: a file, or "random"."""


_ROWS = TypeAdapter(list[Row])


def read_evaluations(run: Path) -> list[Row]:
    """Return the evaluations of a run, none if there are none yet."""
    file = run / FILE
    if not file.is_file():
        return []
    try:
        return _ROWS.validate_json(file.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise CheckpointError(
            f"{file} is not a list of evaluations: {str(error).splitlines()[0]}; delete it and "
            "evaluate again"
        ) from None


def keep_evaluations(run: Path, checkpoints: Collection[Path]) -> None:
    """Drop the evaluations of other checkpoints, which are gone; what is no list stays as it is."""
    if not (run / FILE).is_file():
        return
    names = {checkpoint.name for checkpoint in checkpoints}
    with _locked(run), contextlib.suppress(CheckpointError):
        rows = read_evaluations(run)
        kept = [row for row in rows if row.checkpoint in names]
        if kept != rows:
            _write(run, kept)


class Evaluator:
    """The best operator of a run, calibrated, with the data to evaluate it on.

    `data` is where that was moved to since the run.
    """

    def __init__(
        self,
        run: Path,
        *,
        split: str | None = None,
        device: str = "auto",
        data: Path | None = None,
    ) -> None:
        recipe = Run(run).recipe()
        # The test split stays unseen until a run has ended and its checkpoint is chosen.
        split = split or ("test" if Run(run).result() is not None else "validation")
        self.run, self.split = run, split
        self.checkpoint = find_operator(run)  # a run that goes on may have a better one later
        self.operator = Operator.load(self.checkpoint, choose_device(device))
        dataset = data_of(recipe, data)
        self.operator.refuse_other_data(dataset)
        parts = cut(dataset, recipe)
        if not is_calibrated(self.operator):
            self.operator.calibrate(load(parts.train, self.operator.device))
        self.resolution = recipe.data.resolution
        dataset.rows(split)  # refuses a name that is no split
        chosen: dict[str, View] = {
            "train": parts.train,
            "validation": parts.validation,
            "test": parts.test,
        }
        self.view = chosen[split]

    def on_grid(self, resolution: int | None) -> Row:
        """Evaluate on a grid: the training resolution if none is given."""
        return self._keep(lambda: on_grid(self.operator, self.view, resolution or self.resolution))

    def at_points(self, points: Array, source: str = "") -> Row:
        """Evaluate at scattered points, with inputs at the training resolution.

        Points from another `source` are another evaluation, however many there are.
        """
        where = as_queries(self.operator, points)
        return self._keep(lambda: at_points(self.operator, self.view, where), source)

    def _keep(self, evaluate: Callable[[], Evaluation], source: str = "") -> Row:
        start = time.monotonic()
        done = evaluate()
        errors = done.score.errors.double()
        if not errors.isfinite().all():
            raise DataError(
                f"the error is not finite in {int((~errors.isfinite()).sum())} of {len(errors)} "
                f"samples at these {done.points} points: the true output is zero at all of them, "
                "or the prediction is not finite"
            )
        row = Row(
            kind=done.kind,
            points=done.points,
            resolution=done.resolution,
            split=self.split,
            mean=float(errors.mean()),
            median=statistics.median(errors.tolist()),
            worst=float(errors.max()),
            samples=len(errors),
            seconds=round(time.monotonic() - start, 3),
            checkpoint=self.checkpoint.name,
            source=source,
        )
        with _locked(self.run):
            there = {path.name for path in saved(Run(self.run).checkpoints)} | {row.checkpoint}
            others = [
                old
                for old in read_evaluations(self.run)
                if old.checkpoint in there and _place(old) != _place(row)
            ]
            _write(self.run, [*others, row])
        return row


@contextlib.contextmanager
def _locked(run: Path) -> Iterator[None]:
    """Wait until no other process changes the evaluations."""
    with (run / LOCK_FILE).open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _write(run: Path, rows: list[Row]) -> None:
    rows = sorted(rows, key=lambda r: (r.checkpoint, r.split, r.kind, r.points))
    content = json.dumps([row.model_dump(mode="json") for row in rows], indent=1)
    write_text(run / FILE, content + "\n")


def _place(row: Row) -> tuple[object, ...]:
    """Return what makes an evaluation another one than those before."""
    return row.checkpoint, row.kind, row.points, row.resolution, row.split, row.source
