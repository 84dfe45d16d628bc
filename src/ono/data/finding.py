"""A defect of a dataset, and how the checks walk through its samples one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ono.data.info import Array, ArrayName
from ono.data.store import Dataset

SHOWN = 5

Severity = Literal["fatal", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect: fatal ones forbid training, notes are worth knowing."""

    severity: Severity
    what: str
    where: str
    count: int = 1
    indices: tuple[int, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.indices))
        more = ", ..." if self.count > len(self.indices) else ""
        samples = f" in {self.count} samples: {shown}{more}" if self.indices else ""
        return f"{self.severity}: {self.where}: {self.what}{samples}"


def in_samples(severity: Severity, what: str, where: str, at: list[int]) -> Finding:
    """Return a finding that counts the samples and names the first few."""
    return Finding(severity, what, where, len(at), tuple(at[:SHOWN]))


def varying(dataset: Dataset) -> list[ArrayName]:
    """Return the arrays that differ from sample to sample."""
    ragged = dataset.offsets is not None
    shared = {"times", "offsets"} | ({"coords"} if dataset.info.mesh.shared else set())
    if dataset.weights is not None and dataset.weights.ndim == 1 and not ragged:
        shared.add("weights")
    return [name for name in dataset.arrays if name not in shared]


def row_of(dataset: Dataset, name: ArrayName, index: int) -> Array:
    """Return what one sample has of an array."""
    array, offsets = dataset.arrays[name], dataset.offsets
    if offsets is None or name in ("params", "draws"):
        return np.asarray(array[index])
    return np.asarray(array[offsets[index] : offsets[index + 1]])


def points_of(dataset: Dataset, index: int) -> Array:
    """Return the points of one sample, [points dim]."""
    shared = dataset.info.mesh.shared
    return np.asarray(dataset.coords) if shared else row_of(dataset, "coords", index)
