"""What a cell is worth and what it costs: enough to run the best first, and to plan a day.

Times are read off similar lines of the ledger, or else estimated from steps measured on one NVIDIA
H200 (`ono bench speed`, milliseconds a step with the batch of the recipe). Of long steps in bf16
some were measured, 2.1 to 3.7 times as fast as in TF32 and not compiled; the others are taken to be
twice as fast. They decide the order of work, never a result. A smoke run is for a CPU, where all
cells take about as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ono.data.benchmarks import benchmark, split_rows
from ono.experiments.budgets import Budget
from ono.experiments.grid import Cell, Experiment
from ono.experiments.ledger import Line
from ono.experiments.published import PUBLISHED
from ono.models.ono_config import ONOConfig
from ono.models.ono_fused import unfusable
from ono.nn.fused_landmark_attention import MOST_LANDMARKS
from ono.train.recipe import Recipe

_MODELS = (
    "ono", "fno", "geo-fno", "u-fno", "f-fno", "galerkin", "lsm", "gnot", "deeponet", "transolver",
)  # fmt: skip
_STEPS = {
    "darcy": (4.2, 4.3, 4.3, 6.2, 13.6, 6.7, 19.6, 9.7, 2.2, 10.5),
    "ns2d": (31.1, 9.4, 9.3, 14.0, 28.3, 5.8, 69.9, 37.8, 6.9, 27.7),
    "airfoil": (5.6, 0.0, 7.0, 9.7, 6.4, 8.7, 8.3, 14.4, 4.5, 13.5),
    "elasticity": (3.1, 0.0, 3.1, 4.0, 7.4, 3.1, 16.1, 5.3, 0.8, 3.8),
    "plasticity": (23.1, 0.0, 39.3, 64.5, 15.1, 21.4, 48.0, 47.7, 10.1, 72.0),
    "pipe": (7.7, 0.0, 7.8, 11.6, 7.9, 12.4, 14.7, 18.5, 6.1, 31.7),
}
_POINTS = {"darcy": 85**2, "airfoil": 221 * 51, "elasticity": 972, "pipe": 129**2}
_PLAIN = 4.5
"""How many times as long steps of an ONO are without fused kernels."""
_ATTENTION = {"linear": 1.9, "galerkin": 4.0, "softmax": 1.9, "nystrom": 2.1}
"""How many times as long fused steps are with attentions of torch, Nyström with few landmarks."""
_MANY_LANDMARKS = 5.4
"""How many times as long they are with Nyström and so many that it has no kernels."""
_NORM = {"bn": 1.6, "ln": 1.6}
"""How many times as long fused steps may be with a norm of torch."""
_SHORT_STEP = 4.5
"""Milliseconds of a step that leaves much of an H200 idle."""
_START = 0.3
"""Minutes to load, compile and record, whatever follows."""
_SMOKE = 2 / 60
"""Minutes of a cell of a smoke run on one core of a CPU, on average, without making its data."""
_EXACT_ATTENTION = {"fp32": 2e13, "tf32": 2e13, "bf16": 1e14}
"""Operations a second of attention between all pairs of points, in each precision."""


def minutes(cell: Cell, budget: Budget, lines: Iterable[Line] = ()) -> tuple[float, bool]:
    """Return how long a cell takes, and whether that was measured: the ledger has one like it.

    Lines of cells that shared a device, or may have, say nothing about that.
    """
    like = [
        line
        for line in lines
        if (line.recipe, line.changes, line.budget) == (cell.recipe, cell.changes, budget.name)
        and line.status == "complete"
        and line.shared == 1
        and (line.epochs > 0) == (cell.kind == "train")
    ]
    if like:
        return max(line.seconds for line in like) / 60, True
    start = _SMOKE if budget.is_smoke else _START
    if cell.kind != "train":
        return start, False
    return start + _training(cell, budget), False


def value(experiment: Experiment, cell: Cell) -> float:
    """Return what a cell adds: the places it fills, most where the paper has a number, and ours.

    >>> from ono.experiments.catalogue import experiment
    >>> ono, fno = (value(experiment("main"), Cell(f"darcy/{name}")) for name in ("ono", "fno"))
    >>> ono / fno
    3.0
    """
    worth = 0.0
    for table in experiment.tables:
        printed = PUBLISHED[table.name].numbers if table.name in PUBLISHED else {}
        for key, place in table.places.items():
            if cell in place.cells:
                worth += (1.0 if key in printed else 0.3) / len(place.cells)
    return worth * (3 if cell.recipe.endswith("/ono") else 1)


def fills_a_gpu(cell: Cell, budget: Budget) -> bool:
    """Say whether the steps of a cell are so long that they leave little for others.

    >>> from ono.experiments.budgets import BUDGETS
    >>> [fills_a_gpu(Cell(f"{name}/ono"), BUDGETS["short"]) for name in ("elasticity", "pipe")]
    [False, True]
    """
    return cell.kind == "train" and _step(cell, budget) > _SHORT_STEP


def _training(cell: Cell, budget: Budget) -> float:
    asked = Recipe.load(cell.recipe, budget.changes(cell))
    full = benchmark(cell.benchmark).sizes[budget.size].splits
    samples = asked.data.train or split_rows(full, cell.samples)["train"][1]
    steps = -(-samples // asked.train.batch) * asked.train.epochs
    return steps * _step(cell, budget) / 60_000


def _step(cell: Cell, budget: Budget) -> float:
    """Return the milliseconds of a step."""
    usual = Recipe.load(cell.recipe)
    asked = Recipe.load(cell.recipe, budget.changes(cell))
    step = _STEPS[cell.benchmark][_MODELS.index(usual.model.name)] * _larger(asked, usual)
    config = asked.model.config
    if isinstance(config, ONOConfig):
        of_torch = _attention(config) * _NORM.get(config.eigen.norm, 1.0)
        step *= of_torch if unfusable(config) is None else max(of_torch, _PLAIN)
    return step + _all_pairs(cell, asked)


def _attention(config: ONOConfig) -> float:
    lower = config.lower
    if lower.attention == "nystrom" and lower.landmarks > MOST_LANDMARKS:
        return _MANY_LANDMARKS
    return _ATTENTION.get(lower.attention, 1.0)


def _larger(asked: Recipe, usual: Recipe) -> float:
    """Return by how much a step grows with layers, width, resolution, batch and frames."""
    ours, theirs = _sizes(asked), _sizes(usual)
    grown = 1.0
    for name, power in (("layers", 1), ("width", 1), ("resolution", 2), ("batch", 1), ("steps", 1)):
        if ours[name] and theirs[name]:
            grown *= (ours[name] / theirs[name]) ** power
    return grown


def _sizes(recipe: Recipe) -> dict[str, Any]:
    config = recipe.model.config
    rollout = None if recipe.rollout is None else (recipe.rollout.train_steps or 10)
    return {
        "layers": getattr(config, "layers", None),
        "width": getattr(config, "width", None),
        "resolution": recipe.data.resolution,
        "batch": recipe.train.batch,
        "steps": rollout,
    }


def _all_pairs(cell: Cell, asked: Recipe) -> float:
    """Return the milliseconds that softmax attention between all points adds to a step."""
    if "model.lower.attention=softmax" not in cell.changes:
        return 0.0
    sizes, points = _sizes(asked), _POINTS.get(cell.benchmark, 4096)
    forward = 4 * points**2 * sizes["width"] * sizes["layers"] * sizes["batch"]
    return float(3.5 * 1000 * forward / _EXACT_ATTENTION[asked.train.precision])
