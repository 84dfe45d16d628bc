"""What a maker promises: a plan of a dataset, and how to draw and solve its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ono.data.info import Array, ArrayName, Info, Split

Splits = dict[Split, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Rows:
    """An array filled one row per sample: the shape of a row and its dtype on disk."""

    shape: tuple[int, ...]
    dtype: str = "<f4"


@dataclass(frozen=True, slots=True)
class Solved:
    """What a solver returns for a batch: arrays [batch ...] and its word on each sample."""

    arrays: Mapping[ArrayName, Array]
    converged: Array
    residual: Array
    iterations: Array


@dataclass(frozen=True, slots=True)
class Plan:
    """A dataset before its samples: what is known, what will be filled, and how.

    `draw(index, attempt)` returns the arrays of one sample and nothing else decides them; those
    named in `filled` are stored, others only reach the solver. `solve(batch, device)` gets them
    stacked and may add any array of `filled`; a sample must not depend on its batch-mates.
    """

    info: Info
    fixed: Mapping[ArrayName, Array]
    filled: Mapping[ArrayName, Rows]
    draw: Callable[[int, int], Mapping[str, Array]]
    solve: Callable[[Mapping[str, Array], str], Solved]
    batch: int = 64
    cuda_batch: int = 256


@runtime_checkable
class Maker(Protocol):
    """Anything that can plan a dataset of a named size."""

    @property
    def name(self) -> str:
        """What `provenance.maker` says."""

    def plan(self, size: str, samples: int | None, seed: int) -> Plan:
        """Describe the dataset; without `samples`, as many as the size says."""
