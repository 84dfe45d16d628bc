"""Collect what a report shows: what the run wrote down, and what its operator predicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from ono.data.task import Views
from ono.errors import CheckpointError, DataError, InputError, NotCalibrated
from ono.evaluate.card import Card, find_operator
from ono.evaluate.operator import Operator
from ono.models.ono_config import ONOConfig
from ono.report.predictions import Pictures, look
from ono.train.evaluations import Row, read_evaluations
from ono.train.prepare import cut, data_of
from ono.train.recipe import Recipe
from ono.train.run import ENVIRONMENT, EVENTS, RESULT, Run, read_lines, read_metrics

T = TypeVar("T")


class Outcome(BaseModel, frozen=True):
    """How a finished run ended, from `result.json`."""

    validation: float
    test: float
    test_errors: dict[int, float]
    test_by_time: list[float] | None = None
    epoch: int
    checkpoint: str
    seconds: float
    device: str
    parameters: int
    recipe_sha256: str
    dataset_sha256: str
    seed: int
    peak_memory_bytes: int | None = None
    commit: str | None = None
    failed_saves: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a report shows. Where something is missing, a sentence says why."""

    recipe: Recipe
    outcome: Outcome | None
    metrics: list[dict[str, Any]]
    environment: dict[str, Any]
    events: list[dict[str, Any]]
    evaluations: list[Row]
    card: Card | None
    parts: Views | None
    pictures: Pictures | None
    missing: str

    @property
    def recipe_sha256(self) -> str:
        """The hash of the recipe that made the result, whatever stands in the run today."""
        return self.recipe.sha256 if self.outcome is None else self.outcome.recipe_sha256

    @property
    def is_of_this_data(self) -> bool:
        """Whether the dataset that is there is the one of the result."""
        if self.parts is None:
            return False
        there = self.parts.train.dataset.sha256
        return self.outcome is None or self.outcome.dataset_sha256 == there

    @property
    def resolution(self) -> tuple[int, ...] | None:
        """The logical shape of the mesh in training, unless it is a cloud or not known."""
        if self.card is not None:
            return self.card.resolution
        return None if self.parts is None else self.parts.train.shape


def gather(path: Path, layer: int | None = None, data: Path | None = None) -> Evidence:
    """Read a run directory and evaluate its operator on the samples to be drawn.

    `data` is where its dataset was moved to; one that is named has to be the right one.
    """
    run = Run(path)
    recipe = run.recipe()
    layer = choose_layer(recipe, layer)
    outcome = _outcome(run)
    operator, no_operator = _attempt(lambda: Operator.load(path))
    if data is not None:
        moved = data_of(recipe, data)
        if operator is not None:
            operator.refuse_other_data(moved)
    parts, no_data = _attempt(lambda: cut(data_of(recipe, data), recipe))
    pictures, no_pictures = None, ""
    if operator is not None and parts is not None:
        pictures, no_pictures = _attempt(lambda: _look(operator, parts, outcome, layer))
    return Evidence(
        recipe=recipe,
        outcome=outcome,
        metrics=read_metrics(path),
        environment=_environment(path),
        events=read_lines(path / EVENTS),
        evaluations=_of_what_is_there(path),
        card=None if operator is None else operator.card,
        parts=parts,
        pictures=pictures,
        missing="; ".join(filter(None, (no_operator, no_data, no_pictures))),
    )


def _attempt(step: Callable[[], T]) -> tuple[T | None, str]:
    """Return what a step gives, or why it cannot: a report shows what there is."""
    try:
        return step(), ""
    except (DataError, CheckpointError, NotCalibrated) as error:
        return None, str(error)


def _look(operator: Operator, parts: Views, outcome: Outcome | None, layer: int | None) -> Pictures:
    if outcome is not None:
        return look(operator, parts.test, "test", outcome.test_errors, layer)
    # The test split stays unseen until the run has ended.
    return look(operator, parts.validation, "validation", None, layer)


def choose_layer(recipe: Recipe, layer: int | None) -> int | None:
    """Return the layer whose eigenfunctions are drawn: the given one, else the middle one."""
    config = recipe.model.config
    if not isinstance(config, ONOConfig):
        if layer is not None:
            raise InputError(
                f"layer {layer} was asked for, but {recipe.model.name} has no eigenfunctions; "
                "leave the layer out"
            )
        return None
    if layer is not None and layer not in range(config.layers):
        raise InputError(f"layer must be 0 to {config.layers - 1}, got {layer}")
    return config.layers // 2 if layer is None else layer


def _outcome(run: Run) -> Outcome | None:
    try:
        content = run.result()
        return None if content is None else Outcome.model_validate(content)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{run.path / RESULT} cannot be read: {reason}") from None


def _environment(path: Path) -> dict[str, Any]:
    """Return where a run ran, if that can still be read: it only fills footnotes."""
    try:
        content = json.loads((path / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _of_what_is_there(path: Path) -> list[Row]:
    """Return the evaluations, without those of a checkpoint that the run went back behind."""
    rows = read_evaluations(path)
    try:
        now = find_operator(path).name
    except CheckpointError:
        return rows
    return [row for row in rows if row.checkpoint in ("", now)]
