"""Darcy and Navier-Stokes: MATLAB files with fields on a square grid."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ono.data.array_files import keys, open_rows, read_array
from ono.data.official.published import (
    Arrays,
    Published,
    require_counts,
    require_range,
    require_shape,
)
from ono.errors import DataError

DARCY_NODES = 421
TORUS_NODES = 64
FRAMES = 20


def open_darcy(files: Mapping[str, Path], stack: ExitStack) -> Published:
    """Open permeability and pressure on 421x421 nodes; the second file follows the first."""
    nodes, pairs, counts = DARCY_NODES, [], []
    for path in (files["first"], files["second"]):
        a, u = (stack.enter_context(open_rows(path, key)) for key in ("coeff", "sol"))
        sizes = [require_shape(path, rows, nodes, nodes) for rows in (a, u)]
        counts.append(require_counts(coeff=sizes[0], sol=sizes[1]))
        pairs.append((a, u))

    def read(start: int, stop: int) -> Arrays:
        parts = []
        for (a, u), first in zip(pairs, (0, counts[0]), strict=True):
            rows = slice(max(start - first, 0), max(stop - first, 0))
            parts.append((a[rows], u[rows]))
        fields, pressures = (np.concatenate(both) for both in zip(*parts, strict=True))
        known = (fields == 3) | (fields == 12)
        if not known.all():
            wrong = fields[~known][0]
            raise DataError(
                f"coeff holds {wrong:g} in samples {start} to {stop}; the published "
                "permeability is 3 or 12"
            )
        require_range("sol", pressures, low=-0.03, high=0.03, first=start)
        return {"inputs": fields, "outputs": pressures}

    return Published(tuple(counts), read)


def open_navier_stokes(files: Mapping[str, Path], stack: ExitStack) -> Published:
    """Open the vorticity at t = 1 ... 20, with the field at t = 0 as what was drawn."""
    path, nodes = files["flow"], TORUS_NODES
    u, a = (stack.enter_context(open_rows(path, key)) for key in ("u", "a"))
    count = require_counts(
        u=require_shape(path, u, nodes, nodes, FRAMES), a=require_shape(path, a, nodes, nodes)
    )
    times = np.arange(1.0, FRAMES + 1)
    if "t" in keys(path) and not np.allclose(read_array(path, "t").ravel(), times, atol=1e-3):
        raise DataError(f"{path}:t is not 1, 2, ... {FRAMES}; another flow than the published one")

    def read(start: int, stop: int) -> Arrays:
        frames, first = u[start:stop], a[start:stop]
        for name, values in (("u", frames), ("a", first)):
            require_range(name, values, low=-6.0, high=6.0, first=start)
        return {"outputs": np.moveaxis(frames, -1, 1), "draws": first}

    return Published((count,), read)
