"""A dataset and a recipe small enough that a training run takes a second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ono.data.info import Array, Channel, Info, Mesh, Provenance, Split
from ono.data.store import Dataset, write_dataset
from ono.train.recipe import Recipe

SIDE = 9
SAMPLES = 20
SPLITS: dict[Split, tuple[int, int]] = {"train": (0, 12), "validation": (12, 16), "test": (16, 20)}
MODEL: dict[str, Any] = {
    "name": "ono",
    "width": 16,
    "layers": 2,
    "eigen": {"functions": 4, "heads": 2},
    "lower": {"heads": 2},
}


def fields(seed: int = 0) -> tuple[Array, Array, Array]:
    """Return coords, smooth random inputs, and outputs that damp each mode by its wave number."""
    random = np.random.default_rng(seed)
    axis = np.linspace(0, 1, SIDE)
    coords = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    inputs = np.zeros((SAMPLES, SIDE * SIDE))
    outputs = np.zeros_like(inputs)
    for i in range(3):
        for j in range(3):
            mode = np.cos(np.pi * i * coords[:, 0]) * np.cos(np.pi * j * coords[:, 1])
            amplitude = random.standard_normal((SAMPLES, 1))
            inputs += amplitude * mode
            outputs += amplitude * mode / (1 + i * i + j * j)
    as_stored = [array.astype(np.float32) for array in (coords, inputs, outputs)]
    return as_stored[0], as_stored[1][..., None], as_stored[2][..., None]


def dataset(
    path: Path,
    *,
    seed: int = 0,
    splits: Mapping[Split, tuple[int, int]] = SPLITS,
    inputs: Array | None = None,
    outputs: Array | None = None,
) -> Dataset:
    """Write the dataset, with other arrays in the place of its own if given."""
    coords, a, u = fields(seed)
    info = Info(
        name="tiny",
        task="steady",
        mesh=Mesh(kind="grid", dim=2, shape=(SIDE, SIDE), shared=True),
        inputs=(Channel(name="source", unit="1/m2"),),
        outputs=(Channel(name="potential", unit="V"),),
        samples=SAMPLES,
        splits=dict(splits),
        provenance=Provenance(maker="tests", seed=seed),
    )
    arrays = {
        "coords": coords,
        "inputs": a if inputs is None else inputs,
        "outputs": u if outputs is None else outputs,
    }
    return write_dataset(path, info, arrays)  # type: ignore[arg-type]


def content(data: Path, **train: Any) -> dict[str, Any]:
    """Return the recipe as a mapping; keywords change its section `train`."""
    return {
        "name": "tiny",
        "data": {"path": str(data)},
        "model": MODEL,
        "optimiser": {"learning_rate": 2e-3},
        "train": {"epochs": 3, "batch": 5, "device": "cpu", **train},
    }


def recipe(data: Path, **train: Any) -> Recipe:
    """Return the recipe for the dataset at `data`; three batches make an epoch."""
    return Recipe.from_mapping(content(data, **train))
