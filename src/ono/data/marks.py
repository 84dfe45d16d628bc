"""Marks of the benchmarks: a few numbers that tell one dataset of a benchmark from another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ono.data.info import Array, ArrayName
from ono.data.store import Dataset

GAMMA = 1.4

Sample = Mapping[str, Array]
Marks = dict[str, float]


@dataclass(frozen=True, slots=True)
class Marker:
    """How to mark one sample, and the mesh and the channels out that it must have for that."""

    kind: Literal["grid", "structured", "cloud"]
    outputs: int
    mark: Callable[[Sample], Marks]


def marks(dataset: Dataset) -> Marks:
    """Return the marks of a dataset, averaged over its samples; none if it is no benchmark.

    A mark whose name begins with "least" or "greatest" is the extreme over all samples.
    """
    info, marker = dataset.info, MARKERS.get(dataset.info.name)
    if marker is None or (info.mesh.kind, len(info.outputs)) != (marker.kind, marker.outputs):
        return {}
    if dataset.offsets is not None:  # the benchmarks have the same points in every sample
        return {}
    found: dict[str, list[float]] = defaultdict(list)
    for index in range(info.samples):
        for name, value in marker.mark(_sample(dataset, index)).items():
            found[name].append(value)
    reduce = {"least": np.min, "greatest": np.max}
    return {
        name: float(reduce.get(name.split()[0], np.mean)(values)) for name, values in found.items()
    }


def _sample(dataset: Dataset, index: int) -> Sample:
    """Return the arrays of one sample on the shape of the mesh, channels first."""
    shape = dataset.info.mesh.shape or (dataset.coords.shape[-2],)
    coords = np.asarray(dataset.of_sample("coords", index), np.float64)
    sample = {"coords": coords.reshape(*shape, -1)}
    names: tuple[ArrayName, ...] = ("inputs", "outputs")
    for name in names:
        row = np.asarray(dataset.of_sample(name, index), np.float64)
        row = row.reshape(*row.shape[:-2], *shape, row.shape[-1])
        sample[name] = np.moveaxis(row, -1, 0)
    if "draws" in dataset.arrays:
        sample["draws"] = np.asarray(dataset.arrays["draws"][index])
    return sample


def _darcy(sample: Sample) -> Marks:
    (a,), (u,) = sample["inputs"], sample["outputs"]
    edge = np.concatenate((u[0], u[-1], u[1:-1, 0], u[1:-1, -1]))
    return {
        "interior RMS of pressure": float(np.sqrt((u[1:-1, 1:-1] ** 2).mean())),
        "mean |pressure| at the edge": float(np.abs(edge).mean()),
        "share of permeability 12": float((a == 12).mean()),
    }


def _ns2d(sample: Sample) -> Marks:
    size = np.abs(sample["outputs"][0]).mean((1, 2))
    frames = sorted({0, len(size) // 2 - 1, len(size) - 1})
    return {f"mean |vorticity| of frame {k + 1}": float(size[k]) for k in frames}


def _airfoil(sample: Sample) -> Marks:
    density, u, v, pressure, mach = sample["outputs"]
    wall = sample["coords"][:, 0]
    # Behind the trailing edge the line j = 0 runs back along itself.
    ends = np.flatnonzero(np.abs(wall - wall[::-1]).max(1) > 1e-6)
    body = slice(ends[0], ends[-1] + 1)
    tangent = np.gradient(wall, axis=0)[body]
    normal = np.stack((-tangent[:, 1], tangent[:, 0]), -1)
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    across = u[body, 0] * normal[:, 0] + v[body, 0] * normal[:, 1]
    sound = np.sqrt(GAMMA * pressure / density)
    return {
        "share of nodes with Mach > 1": float((mach > 1).mean()),
        "std of p / rho^1.4": float((pressure / density**GAMMA).std()),
        "mean |wall-normal speed|": float(np.abs(across).mean()),
        "greatest |Mach - speed / sound|": float(np.abs(mach - np.hypot(u, v) / sound).max()),
    }


def _pipe(sample: Sample) -> Marks:
    x, y = sample["coords"][..., 0], sample["coords"][..., 1]
    centre = (y[:, 0] + y[:, -1]) / 2
    u = sample["outputs"][0]
    flux = ((u[:, 1:] + u[:, :-1]) / 2 * np.diff(y, axis=1)).sum(1)
    knots = np.linspace(0, len(x) - 1, 5).round().astype(int)[1:]
    found = {f"greatest |centre| at x = {x[k, 0]:g}": float(abs(centre[k])) for k in knots}
    return found | {
        "inlet: greatest velocity x": float(u[0].max()),
        "flux at the inlet": float(flux[0]),
        "flux half way": float(flux[len(flux) // 2]),
        "flux at the outlet": float(flux[-1]),
        "flux: std over columns": float(flux[:-1].std()),
        "outlet: least velocity x": float(u[-1].min()),
    }


def _elasticity(sample: Sample) -> Marks:
    points = sample["coords"]
    found = {
        "least distance from an edge": float(np.minimum(points, 1 - points).min()),
        "distance from the centre, least": float(np.linalg.norm(points - 0.5, axis=-1).min()),
    }
    if "draws" in sample:
        found["RMS of theta"] = float(np.sqrt((sample["draws"] ** 2).mean()))
    return found


def _plasticity(sample: Sample) -> Marks:
    x, y, ux, uy = sample["outputs"]  # [time i j]
    place = np.stack((x, y), -1)
    bottom, top = place[-1, :, -1], place[-1, :, 0]
    area = _areas(place[-1]) / _areas(sample["coords"])
    die = sample["inputs"][0, :, 0]
    return {
        "std of a frame's step in x": float(np.diff(ux, axis=0).std()),
        "std of a frame's step in y": float(np.diff(uy, axis=0).std()),
        "deepest displacement per frame": float(-uy[-1].min() / (len(uy) - 1)),
        "final bottom width": float(np.ptp(bottom[:, 0])),
        "area ratio, least": float(area.min()),
        "area ratio, 5%": float(np.quantile(area, 0.05)),
        "area ratio, median": float(np.median(area)),
        # Near 1 if the die lies above the nodes it shapes; the mirrored one should do worse.
        "die against final surface": _correlation(die, top[:, 1]),
        "mirrored die against surface": _correlation(die[::-1], top[:, 1]),
    }


def _areas(nodes: Array) -> Array:
    """Return the areas of the cells of a structured mesh [i j 2], from their diagonals."""
    p, q = nodes[1:, 1:] - nodes[:-1, :-1], nodes[:-1, 1:] - nodes[1:, :-1]
    return np.asarray(np.abs(p[..., 0] * q[..., 1] - p[..., 1] * q[..., 0]) / 2)


def _correlation(a: Array, b: Array) -> float:
    """Return the correlation of two lines of numbers; 0 if one is constant."""
    a, b = a - a.mean(), b - b.mean()
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / size) if size else 0.0


MARKERS = {
    "darcy": Marker("grid", 1, _darcy),
    "ns2d": Marker("grid", 1, _ns2d),
    "airfoil": Marker("structured", 5, _airfoil),
    "pipe": Marker("structured", 3, _pipe),
    "elasticity": Marker("cloud", 1, _elasticity),
    "plasticity": Marker("structured", 4, _plasticity),
}
