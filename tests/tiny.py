"""A dataset and a recipe small enough that a training run takes a second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ono.data.info import Array, ArrayName, Channel, Info, Mesh, Provenance, Split, Task
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


def cloud(path: Path) -> Dataset:
    """Write a load at points of their own in each sample, and twice of it as the answer."""
    random = np.random.default_rng(0)
    coords = random.standard_normal((SAMPLES, 40, 2)).astype(np.float32) ** 3
    load = np.cos(coords.sum(-1, keepdims=True)) * random.random((SAMPLES, 1, 1))
    info = Info(
        name="cloud",
        task="steady",
        mesh=Mesh(kind="cloud", dim=2, shared=False),
        inputs=(Channel(name="load", unit="N"),),
        outputs=(Channel(name="answer", unit="N"),),
        samples=SAMPLES,
        splits=SPLITS,
        provenance=Provenance(maker="tests"),
    )
    load = load.astype(np.float32)
    return write_dataset(path, info, {"coords": coords, "inputs": load, "outputs": 2 * load})


def series(path: Path, task: Task = "rollout", *, frames: int = 6) -> Dataset:
    """Write heat flow: every mode of a random field decays at its own rate.

    As a roll-out the frames are all there is; timed, the field at t = 0 is the input.
    """
    random = np.random.default_rng(0)
    coords, _, _ = fields()
    times = 0.02 * np.arange(frames, dtype=np.float32)
    start, outputs = np.zeros((SAMPLES, SIDE**2)), np.zeros((SAMPLES, frames, SIDE**2))
    for i in range(3):
        for j in range(3):
            mode = np.cos(np.pi * i * coords[:, 0]) * np.cos(np.pi * j * coords[:, 1])
            amplitude = random.standard_normal((SAMPLES, 1))
            decay = np.exp(-(np.pi**2) * (i * i + j * j) * times)
            start += amplitude * mode
            outputs += (amplitude * decay)[..., None] * mode
    rollout = task == "rollout"
    info = Info(
        name="heat",
        task=task,
        mesh=Mesh(kind="grid", dim=2, shape=(SIDE, SIDE), shared=True),
        inputs=() if rollout else (Channel(name="start", unit="K"),),
        outputs=(Channel(name="temperature", unit="K"),),
        samples=SAMPLES,
        splits=SPLITS,
        provenance=Provenance(maker="tests"),
    )
    known = np.zeros((SAMPLES, SIDE**2, 0)) if rollout else start[..., None]
    arrays: dict[ArrayName, Array] = {
        "coords": coords,
        "inputs": known.astype(np.float32),
        "outputs": outputs[..., None].astype(np.float32),
        "times": times,
    }
    return write_dataset(path, info, arrays)


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
