"""A defect of a dataset, and which of its arrays differ from sample to sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ono.data.info import ArrayName
from ono.data.store import Dataset

SHOWN = 5

Severity = Literal["fatal", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect: fatal ones forbid training, notes are worth knowing.

    `indices` are the first few samples that have it, `like` those that each of them repeats.
    """

    severity: Severity
    what: str
    where: str
    count: int = 1
    indices: tuple[int, ...] = ()
    like: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.told()

    def told(self, files: Sequence[str] = ()) -> str:
        """Return the finding as a sentence, with the names of files if samples came from some.

        >>> Finding("note", "zero", "inputs", 3, (0, 1)).told(["a.vtu", "b.vtu", "c.vtu"])
        'note: inputs: zero in 3 files: a.vtu, b.vtu, ...'
        """
        names = [files[i] if files else str(i) for i in self.indices]
        if self.like:
            others = [files[i] if files else str(i) for i in self.like]
            names = [f"{name} like {other}" for name, other in zip(names, others, strict=True)]
        more = ["..."] if self.count > len(names) else []
        kind = "files" if files else "samples"
        where = f" in {self.count} {kind}: {', '.join(names + more)}" if names else ""
        return f"{self.severity}: {self.where}: {self.what}{where}"


def in_samples(
    severity: Severity, what: str, where: str, at: list[int], like: Sequence[int] = ()
) -> Finding:
    """Return a finding that counts the samples and names the first few."""
    return Finding(severity, what, where, len(at), tuple(at[:SHOWN]), tuple(like[:SHOWN]))


def varying(dataset: Dataset) -> list[ArrayName]:
    """Return the arrays that differ from sample to sample."""
    ragged = dataset.offsets is not None
    shared = {"times", "offsets"} | ({"coords"} if dataset.info.mesh.shared else set())
    if dataset.weights is not None and dataset.weights.ndim == 1 and not ragged:
        shared.add("weights")
    return [name for name in dataset.arrays if name not in shared]
