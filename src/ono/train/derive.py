"""A recipe for data nobody has written one for (no torch here)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ono.data.info import Info
from ono.data.store import Dataset
from ono.errors import DataError

_STEPS = 4000
"""Training steps of a small recipe: some minutes on two CPU cores."""


def derive(path: Path | str, *, model: str = "ono", small: bool = False) -> dict[str, Any]:
    """Return the recipe that the task, the size and the mesh of a dataset call for.

    A `small` one suits a CPU: fewer epochs, and ONO is narrower. Other models keep their defaults.
    """
    data = Dataset.open(path)
    info = data.info
    samples, frames = len(data.rows("train")), 1 if data.times is None else len(data.times)
    if info.task == "rollout" and frames < 2:
        raise DataError(f"{path} has {frames} frame, a roll-out needs at least two")
    history = max(1, frames // 2) if info.task == "rollout" else 0
    points = data.coords.shape[-2] // (1 if data.offsets is None else info.samples)
    batch = _batch(points * (frames - history), samples)
    recipe: dict[str, Any] = {
        "name": f"{_plain(info.name)}/{model}",
        "data": {"path": str(path)},
        "model": {"name": model},
        "optimiser": {"learning_rate": 1e-3},
        "train": {"epochs": 500, "batch": batch},
    }
    if model == "ono":
        recipe["model"] |= _ono_options(info, small=small)
    if history:
        recipe["rollout"] = {"history": history}
        recipe["data"]["guess"] = "affine"
    if len(info.outputs) > 1:
        recipe["train"]["loss"] = "channels"
    if small:
        epochs = min(500, max(10, round(_STEPS * batch / samples)))
        recipe["optimiser"]["learning_rate"] = 2e-3
        recipe["train"]["epochs"] = epochs
    return recipe


def pace(recipe: dict[str, Any], *, small: bool = False) -> None:
    """Set how often a derived recipe validates, from its epochs and unless it says so itself.

    >>> recipe = {"train": {"epochs": 40}}
    >>> pace(recipe)
    >>> recipe["train"]["validate_every"]
    4
    """
    train = recipe["train"]
    if isinstance(train, dict) and isinstance(epochs := train.get("epochs"), int):
        every = max(1, epochs // 10)
        train.setdefault("validate_every", every if small else min(10, every))


def _ono_options(info: Info, *, small: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"position": "mesh"} if info.mesh.kind == "structured" else {}
    if small:
        options |= {"width": 64, "layers": 4, "lower": {"heads": 4}, "eigen": {"heads": 4}}
    return options


def _batch(values: int, samples: int) -> int:
    """Return how many samples a step takes: about 30 000 points, and never much of the data.

    Few samples would do for the gradient, but not for the covariance that whitens them: it must
    resemble that of all samples.

    >>> _batch(972, 1000), _batch(7225, 1000), _batch(300_000, 1000), _batch(100, 40)
    (16, 4, 1, 5)
    """
    fitting = 1 << max(0, min(4, round(math.log2(30_000 / values))))
    return max(1, min(fitting, samples // 8))


def _plain(name: str) -> str:
    """Return a name that can be part of a path."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
