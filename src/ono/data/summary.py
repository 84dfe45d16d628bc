"""Say in lines of text what a dataset is, before or after it is written."""

from __future__ import annotations

import numpy as np

from ono.data.info import Array, ArrayName, Channel
from ono.data.store import Dataset

_ROWS = 64


def describe(dataset: Dataset) -> list[str]:
    """Return what was understood: task, mesh, splits, shapes, and the range of every channel.

    Axes are in the letters of `ono.data.layout`.
    """
    info, summary = dataset.info, dataset.summary()
    lines = [f"task: {info.task}", f"mesh: {summary['mesh']}, {info.mesh.dim}-dimensional"]
    if info.mesh.periodic:
        lines[-1] += ", periodic"
    splits = ", ".join(f"{name} {a}:{b}" for name, (a, b) in info.splits.items())
    used = sum(b - a for a, b in info.splits.values())
    unused = f", {info.samples - used} not used" if used < info.samples else ""
    lines.append(f"samples: {info.samples} ({splits}{unused})")
    if dataset.times is not None:
        lines.append(f"times: {summary['times']}")
    dims = tuple(Channel(name="xyz"[k] if k < 3 else f"x{k}") for k in range(info.mesh.dim))
    groups: dict[ArrayName, tuple[Channel, ...]] = {
        "coords": dims,
        "inputs": info.inputs,
        "params": info.params,
        "outputs": info.outputs,
    }
    for name, channels in groups.items():
        if name not in dataset.arrays or not channels:
            continue
        array = dataset.arrays[name]
        lines.append(f"{name}: {list(array.shape)}")
        for channel, (low, high) in zip(channels, _ranges(array), strict=True):
            unit = "" if channel.unit == "1" else f" [{channel.unit}]"
            lines.append(f"  {channel.name}{unit}: {low:.4g} to {high:.4g}")
    if dataset.weights is not None:
        lines.append(f"weights: {list(dataset.weights.shape)}")
    return lines + origins(dataset)


def origins(dataset: Dataset) -> list[str]:
    """Return which file and which axes became what, and what was decided on the way."""
    source = dataset.info.provenance
    lines = [f"{key} from {value}" for key, value in source.settings.items()]
    return lines + [f"note: {note}" for note in source.note.split("; ") if note]


def _ranges(array: Array) -> list[tuple[float, float]]:
    """Return the smallest and largest finite value of each channel, some rows at a time."""
    low = np.full(array.shape[-1], np.inf)
    high = -low
    for start in range(0, len(array), _ROWS):
        flat = np.asarray(array[start : start + _ROWS], np.float64).reshape(-1, array.shape[-1])
        finite = np.isfinite(flat)
        low = np.minimum(low, np.where(finite, flat, np.inf).min(0))
        high = np.maximum(high, np.where(finite, flat, -np.inf).max(0))
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
