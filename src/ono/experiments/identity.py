"""What makes two cells the same: the values that decide what is learned, and nothing else.

Every value a recipe has in effect is hashed, whether it was written or is a default: a default
that changes makes another recipe of those that use it, and of no other. Two kinds of field are
left out. What says where or how a run is executed, and not what it computes, never counts. A field
that did not exist when results were kept counts unless it has the value that means what was done
before, so that it does not orphan them. And one that nothing reads counts as if it had never
changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ono.data.benchmarks import BENCHMARKS
from ono.data.filling import Request
from ono.data.store import Dataset
from ono.experiments.budgets import Budget
from ono.experiments.grid import Cell
from ono.train.recipe import Recipe

WHERE = ("name", "seed", "data.path", "data.memory", "model.preset", "train.device")
"""Names and places. The seed is told beside the identity, a preset by the values it stands for."""

HOW = (
    "train.execution",
    "train.kernels",
    "train.streams",
    "train.compile",
    "train.recompute",
)
"""Ways to the same numbers, up to rounding. They decide time and memory."""

BOOKS = ("train.checkpoint_minutes", "train.keep", "train.tensorboard")
"""What is kept while training."""

ADDED: dict[str, Any] = {"ono.surroundings": 0}
"""Fields that came after the first kept result, with the value that means what was done before.

Options of an operator are written with its name: "ono.width", not "model.width".
"""

IDLE: dict[str, tuple[str, Any, Any]] = {
    "ono.lower.landmarks": ("ono.lower.attention", "nystrom", 256),
}
"""Fields that count only beside a value of another one; elsewhere as what they were at first."""

_LOOKED_AT = 8


def identity(recipe: Recipe, *, timed_on: str | None = None) -> str:
    """Return the hash of what decides a result; for times, also how and on which device."""
    left_out = {*WHERE, *BOOKS, *(() if timed_on else HOW)}
    counted = {name: value for name, value in effective(recipe) if name not in left_out}
    for name, (other, needed, before) in IDLE.items():
        if name in counted and counted[other] != needed:
            counted[name] = before
    for name, before in ADDED.items():
        if name in counted and counted[name] == before:
            del counted[name]
    return digest(counted | ({"timed on": timed_on} if timed_on else {}))


def cell_identity(cell: Cell, budget: Budget) -> str:
    """Return the identity of what a cell trains under a budget."""
    return _changed_identity(cell.recipe, tuple(budget.changes(cell)))


@cache
def _changed_identity(recipe: str, changes: tuple[str, ...]) -> str:
    return identity(Recipe.load(recipe, changes))


def effective(recipe: Recipe) -> list[tuple[str, Any]]:
    """Return every field of a recipe by its full name, with the value it has in effect.

    >>> dict(effective(Recipe.load("darcy/ono", ["train.epochs=3"])))["train.epochs"]
    3
    """
    content = recipe.resolved()
    options = content["model"]
    operator, preset = options.pop("name"), options.pop("preset")
    content |= {"model": {"name": operator, "preset": preset}, operator: options}
    return list(_flat(content))


def _flat(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def data_identity(data: Dataset) -> str:
    """Return the hash of what data is: of its files, or of what was made and how it came out.

    Data made from the same request on another device may differ in its last bits and is the same
    data. Three digits of the outputs' size tell data of a maker whose physics was changed.
    """
    if data.info.provenance.maker not in BENCHMARKS:
        return data.sha256
    return _made_identity(data.path, data.sha256)


@cache
def _made_identity(path: Path, sha256: str) -> str:
    data = Dataset.open(path)
    some = np.asarray(data.outputs[:_LOOKED_AT], np.float64)
    sizes = np.sqrt(np.square(some).mean(tuple(range(some.ndim - 1))))
    request = Request.of(data.info).model_dump(mode="json")
    return digest(request | {"outputs": [f"{size:.2e}" for size in sizes]})


def digest(content: Any) -> str:
    """Return the hash of anything that can be written as JSON.

    >>> digest({"a": 1})[:8]
    'f9d86028'
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
