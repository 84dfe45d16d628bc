"""Plasticity: a MATLAB file with a die profile and the deformed mesh at 20 times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ono.data.array_files import open_rows
from ono.data.info import Array
from ono.data.official.published import (
    Arrays,
    Published,
    require_counts,
    require_range,
    require_shape,
)

SHAPE = (101, 31)
FRAMES = 20

Pairing = Literal["by-x", "released"]
PAIRINGS: tuple[Pairing, ...] = get_args(Pairing)


def open_plasticity(
    pairing: Pairing,
) -> Callable[[Mapping[str, Path], ExitStack], Published]:
    """Return how to open the file with this pairing of die and nodes.

    The file lists the die from left to right but the nodes from right to left. "by-x" gives every
    node the die height above it, entry 100 - i for node i; "released" gives it entry i, as loaders
    in circulation do, which mirrors the die.
    """

    def open_file(files: Mapping[str, Path], stack: ExitStack) -> Published:
        path, (across, down) = files["forging"], SHAPE
        die, field = (stack.enter_context(open_rows(path, key)) for key in ("input", "output"))
        count = require_counts(
            input=require_shape(path, die, across),
            output=require_shape(path, field, across, down, FRAMES, 4),
        )

        def read(start: int, stop: int) -> Arrays:
            heights, values = die[start:stop], field[start:stop]
            require_range("displacement", values[..., 2:], low=-10.0, high=10.0, first=start)
            require_range("y", values[..., 1], low=-0.2, high=27.0, first=start)
            require_range("x", values[..., 0], low=-65.0, high=15.0, first=start)
            require_range("input", heights, low=0.0, high=40.0, first=start)
            aligned = heights[:, ::-1] if pairing == "by-x" else heights
            return {
                "inputs": np.repeat(aligned, down, axis=1),
                "outputs": np.moveaxis(values, 3, 1),
                "draws": heights,
            }

        return Published(
            (count,),
            read,
            settings={"pairing": pairing},
            warnings=_misplaced(field[:1]) if count else (),
        )

    return open_file


def _misplaced(values: Array) -> tuple[str, ...]:
    """Warn if x - u [samples i j time 2] is not the undeformed mesh at every time."""
    i, j = np.meshgrid(*map(np.arange, SHAPE), indexing="ij")
    mesh = np.stack((0.35 - 0.5 * i, 14.9 - 0.5 * j), -1)[:, :, None]
    gap = float(np.abs(values[..., :2] - values[..., 2:] - mesh).max())
    if gap < 0.01:
        return ()
    return (f"output x - u is {gap:.3g} mm away from the undeformed mesh 0.35-0.5i, 14.9-0.5j",)
