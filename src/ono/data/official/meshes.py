"""Airfoil, pipe and elasticity: NumPy files with one mesh per sample."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ono.data.array_files import read_array
from ono.data.info import Array, ArrayName
from ono.data.official.published import (
    Arrays,
    Published,
    require_counts,
    require_range,
    require_shape,
)

AIRFOIL_SHAPE = (221, 51)
PIPE_SHAPE = (129, 129)
POINTS = 972
MODES = 10
SHAPE_NUMBERS = 8


def open_airfoil(files: Mapping[str, Path], stack: ExitStack) -> Published:
    """Open the Euler flow on 221x51 nodes; theta is kept as what was drawn if it is there."""
    x, y, q, counts = _open_structured(files, AIRFOIL_SHAPE, 5)
    theta = _optional(files, SHAPE_NUMBERS, counts)
    count = require_counts(**counts)

    def read(start: int, stop: int) -> Arrays:
        flow = q[start:stop]
        for channel, name in ((0, "density"), (3, "pressure")):
            require_range(name, flow[:, channel], low=1e-30, first=start)
        require_range("Mach", flow[:, 4], low=0.0, high=2.5, first=start)
        require_range("velocity", flow[:, 1:3], first=start)
        coords = np.stack((x[start:stop], y[start:stop]), -1)
        require_range("X and Y", coords, low=-60.0, high=60.0, first=start)
        outputs = np.moveaxis(flow, 1, -1)
        return {"coords": coords, "outputs": outputs, **_draws(theta, start, stop)}

    return Published((count,), read, _absent(theta))


def open_pipe(files: Mapping[str, Path], stack: ExitStack) -> Published:
    """Open the pipe flow on 129x129 nodes; pressure is filled in between the nodes it has."""
    x, y, q, counts = _open_structured(files, PIPE_SHAPE, 3)
    count = require_counts(**counts)

    def read(start: int, stop: int) -> Arrays:
        flow = np.array(q[start:stop], np.float64)
        require_range("Q", flow, low=-100.0, high=100.0, first=start)
        flow[:, 2] = fill_pressure(flow[:, 2])
        require_range("X", x[start:stop], low=-1e-6, high=10 + 1e-6, first=start)
        require_range("Y", y[start:stop], low=-3.0, high=3.0, first=start)
        coords = np.stack((x[start:stop], y[start:stop]), -1)
        return {"coords": coords, "outputs": np.moveaxis(flow, 1, -1)}

    settings = {"pressure": "bilinear where only every second node has a value"}
    return Published((count,), read, _absent(None), settings)


def fill_pressure(pressure: Array) -> Array:
    """Interpolate bilinearly where a field [samples i j] was stored at even nodes only.

    >>> fill_pressure(np.array([[[1.0, 0, 3], [0, 0, 0], [5, 0, 7]]]))[0].tolist()
    [[1.0, 2.0, 3.0], [3.0, 4.0, 5.0], [5.0, 6.0, 7.0]]
    """
    empty = ~(pressure[:, 1::2].any((1, 2)) | pressure[:, :, 1::2].any((1, 2)))
    filled = pressure.copy()
    some = filled[empty]
    some[:, 1::2, ::2] = (some[:, :-1:2, ::2] + some[:, 2::2, ::2]) / 2
    some[:, :, 1::2] = (some[:, :, :-1:2] + some[:, :, 2::2]) / 2
    filled[empty] = some
    return filled


def open_elasticity(files: Mapping[str, Path], stack: ExitStack) -> Published:
    """Open the stress at 972 points; in these files the samples are the last axis."""
    xy, sigma = (np.moveaxis(read_array(files[role]), -1, 0) for role in ("XY", "sigma"))
    counts = {
        "XY": require_shape(files["XY"], xy, POINTS, 2),
        "sigma": require_shape(files["sigma"], sigma, POINTS),
    }
    theta = _optional(files, MODES, counts)
    count = require_counts(**counts)

    def read(start: int, stop: int) -> Arrays:
        coords, stress = xy[start:stop], sigma[start:stop]
        require_range("XY", coords, low=0.0, high=1.0, first=start)
        require_range("sigma", stress, low=0.0, high=2000.0, first=start)
        return {"coords": coords, "outputs": stress, **_draws(theta, start, stop)}

    return Published((count,), read, _absent(theta))


def _open_structured(
    files: Mapping[str, Path], shape: tuple[int, int], channels: int
) -> tuple[Array, Array, Array, dict[str, int]]:
    x, y, q = (read_array(files[role]) for role in ("X", "Y", "Q"))
    counts = {
        "X": require_shape(files["X"], x, *shape),
        "Y": require_shape(files["Y"], y, *shape),
        "Q": require_shape(files["Q"], q, channels, *shape),
    }
    return x, y, q, counts


def _optional(files: Mapping[str, Path], numbers: int, counts: dict[str, int]) -> Array | None:
    """Read theta [samples numbers] if there is one, and add its samples to `counts`."""
    if "theta" not in files:
        return None
    theta = read_array(files["theta"])
    counts["theta"] = require_shape(files["theta"], theta, numbers)
    return theta


def _absent(theta: Array | None) -> frozenset[ArrayName]:
    return frozenset({"draws"}) if theta is None else frozenset()


def _draws(theta: Array | None, start: int, stop: int) -> dict[ArrayName, Array]:
    return {} if theta is None else {"draws": theta[start:stop]}
