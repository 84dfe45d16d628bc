"""Data with the shapes of a benchmark and random numbers in it, for measuring time and memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ono.data.benchmarks import benchmark
from ono.data.info import Array, ArrayName
from ono.data.plan import Plan, Rows
from ono.data.store import Dataset, write_dataset


def stand_in(name: str, out: Path, *, samples: int, size: str = "full") -> Dataset:
    """Write a dataset that has everything of a benchmark but its physics."""
    plan = benchmark(name).plan(size, samples, seed=0)
    random = np.random.default_rng(0)
    arrays: dict[ArrayName, Array] = dict(plan.fixed)
    for array, rows in plan.filled.items():
        arrays[array] = (
            _coords(plan, rows, random) if array == "coords" else _fill(plan, rows, random)
        )
    arrays.pop("draws", None)
    return write_dataset(out, plan.info.model_copy(update={"report": None}), arrays)


def _fill(plan: Plan, rows: Rows, random: np.random.Generator) -> Array:
    return random.standard_normal((plan.info.samples, *rows.shape)).astype(rows.dtype)


def _coords(plan: Plan, rows: Rows, random: np.random.Generator) -> Array:
    """Return an even mesh with every node moved a little, or scattered points."""
    shape, samples = plan.info.mesh.shape, plan.info.samples
    if shape is None:
        return random.random((samples, *rows.shape)).astype(rows.dtype)
    axes = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij")
    even = np.stack(axes, -1).reshape(rows.shape)
    moved = even + random.uniform(-0.2, 0.2, (samples, *rows.shape)) / max(shape)
    return np.asarray(moved.astype(rows.dtype))
