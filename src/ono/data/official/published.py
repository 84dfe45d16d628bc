"""A published dataset opened for reading: what it is, and its samples as the store wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ono.data.array_files import RowSource
from ono.data.info import Array, ArrayName, Scalar
from ono.errors import DataError

Arrays = Mapping[ArrayName, Array]


@dataclass(frozen=True, slots=True)
class Published:
    """The samples of the files, counted through: `read(start, stop)` returns their arrays.

    The maker's plan says what the arrays are; those whose rows are not in the files are `absent`.
    `counts` are the samples of each file. `settings` go into the provenance, `warnings` are
    doubts that do not forbid to read.
    """

    counts: tuple[int, ...]
    read: Callable[[int, int], Arrays]
    absent: frozenset[ArrayName] = frozenset()
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def require_shape(path: Path, source: RowSource, *rest: int) -> int:
    """Return how many samples an array holds whose other axes must be `rest`."""
    count, *shape = (0, *source.shape) if len(source.shape) == 0 else source.shape
    if shape != list(rest):
        raise DataError(
            f"{path} holds {list(source.shape)}, expected {['samples', *rest]} as published; "
            "axes in another order or on another grid are not that file"
        )
    return count


def require_counts(**counts: int) -> int:
    """Return the number of samples that several arrays must agree on."""
    if len(set(counts.values())) != 1:
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DataError(f"the files do not belong together, their samples are: {said}")
    return next(iter(counts.values()))


def require_range(
    name: str, values: Array, *, low: float = -np.inf, high: float = np.inf, first: int = 0
) -> None:
    """Raise unless all values are finite and low <= value <= high; rows start at `first`."""
    flat = values.reshape(len(values), -1)
    # A sum is finite only if every term is.
    good = np.isfinite(flat.sum(1, dtype=np.float64)) & (flat.min(1) >= low) & (flat.max(1) <= high)
    if not good.all():
        at = int(np.flatnonzero(~good)[0])
        raise DataError(
            f"{name} of sample {first + at} runs from {flat[at].min():.4g} to "
            f"{flat[at].max():.4g}, expected {low:g} to {high:g}: the file is damaged or not the "
            "published one; download it again"
        )
