"""A defect of a dataset, and which of its arrays differ from sample to sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ono.data.info import ArrayName
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
