"""Where the points of foreign arrays lie: on a grid, a structured mesh, or in a cloud."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ono.data.info import Array, Channel, Info, Mesh, Provenance, layout_problems
from ono.data.layout import Axes, Meshing
from ono.errors import InputError


@dataclass(frozen=True, slots=True)
class Points:
    """The mesh, its coords as they are stored, and remarks on how they came about."""

    mesh: Mesh
    coords: Array
    notes: tuple[str, ...]


def place_points(
    coords: Array | None,
    shape: tuple[int, ...],
    along: Axes,
    *,
    wanted: Meshing | None = None,
    periodic: bool = False,
) -> Points:
    """Decide where the points lie and what kind of mesh they make.

    `coords` are [(samples) *shape dim]; None means a unit grid. What is `wanted` as a grid and is
    not uniform and ascending becomes structured.
    """
    if coords is None:
        unit = "i/n" if periodic else "0 to 1"
        axes = [np.linspace(0, 1, n, endpoint=not periodic) for n in shape]
        nodes = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(shape))
        kind: Meshing = "structured" if wanted == "structured" else "grid"
        mesh = Mesh(kind=kind, dim=len(shape), shape=shape, shared=True, periodic=periodic)
        note = f"no coords were given: a unit grid, every axis {unit}"
        return Points(mesh, nodes.astype(np.float32), (note,))
    notes: list[str] = []
    own = coords.ndim == len(shape) + 2
    if own and (coords == coords[:1]).all():
        coords, own = coords[0], False
        notes.append("all samples have the same coords: stored once")
    dim = coords.shape[-1]
    flat = coords.reshape(-1, math.prod(shape), dim) if own else coords.reshape(-1, dim)
    logical = None if along == ("p",) else shape
    if logical is None and wanted in ("grid", "structured"):
        logical = _shape_of_list(flat[0] if own else flat, wanted)
    kind, told = _kind(flat, logical, own, wanted, periodic)
    mesh = Mesh(
        kind=kind,
        dim=dim,
        shape=None if kind == "cloud" else logical,
        shared=not own,
        periodic=periodic,
    )
    return Points(mesh, flat, (*notes, *told))


def single(points: Array, label: str) -> Array:
    """Return points [*shape dim] in single precision; refuse to let them fall onto each other.

    Points nearer than 1e-9 of the extent count as one: both sides of a cut differ by rounding. In
    a long list some fall together by chance, which does no harm.

    >>> single(np.array([[0.0], [0.5]]), "line").dtype.name
    'float32'
    """
    with np.errstate(over="ignore"):
        rounded = points.astype(np.float32)
    if not np.isfinite(points).all() or (rounded == points).all():
        return rounded
    flat, short = (a.reshape(-1, points.shape[-1]).astype(np.float64) for a in (points, rounded))
    spans = np.ptp(flat, axis=0)
    fine = 1e-9 * spans.max()
    if fine == 0:
        return rounded
    before, after = _distinct(np.round((flat - flat.min(0)) / fine)), _distinct(short)
    moved = np.abs(short - flat).max(0)
    if after < 0.99 * before or ((spans > fine) & (moved > 1e-3 * spans)).any():
        raise InputError(
            f"{label}: in single precision {before} different points become {after}, moved by up "
            f"to {moved.max():.3g}: numbers as large as {np.abs(flat).max():.7g} leave no digits "
            f"for a mesh of size {spans.max():.4g}; subtract an offset from the coords, or scale "
            "them"
        )
    return rounded


def _distinct(points: Array) -> int:
    ordered = points[np.lexsort(points.T)]
    return 1 + int((ordered[1:] != ordered[:-1]).any(1).sum())


def _kind(
    coords: Array,
    shape: tuple[int, ...] | None,
    own: bool,
    wanted: Meshing | None,
    periodic: bool,
) -> tuple[Meshing, list[str]]:
    """Return the kind of mesh and what to tell about it."""
    if shape is None or wanted == "cloud":
        if periodic:
            raise InputError("--periodic is for grids; a point cloud has no last node")
        return "cloud", []
    if wanted == "structured":
        return "structured", []
    if not own and len(shape) == coords.shape[-1] and _is_uniform(coords, shape):
        return "grid", []
    if len(shape) == 1 and coords.shape[-1] == 1:
        steps = np.diff(coords[..., 0], axis=-1)
        if not ((steps > 0).all() or (steps < 0).all()):
            return "cloud", ["the points of the line are not in order: called a cloud"]
    if periodic:
        raise InputError("--periodic is for uniform grids, these coords are none")
    why = "every sample has its own coords" if own else "coords are not a uniform ascending grid"
    return "structured", [f"{why}: called structured"]


def _is_uniform(coords: Array, shape: tuple[int, ...]) -> bool:
    """Ask the store whether it would take these coords for a grid."""
    info = Info(
        name="grid",
        task="steady",
        mesh=Mesh(kind="grid", dim=len(shape), shape=shape, shared=True),
        outputs=(Channel(name="u"),),
        samples=1,
        splits={},
        provenance=Provenance(maker=""),
    )
    values = np.zeros((1, len(coords), 1), np.float32)
    none = values[..., :0]
    return not layout_problems(info, {"coords": coords, "inputs": none, "outputs": values})


def _shape_of_list(coords: Array, mesh: Meshing) -> tuple[int, ...]:
    """Read the shape of a grid off the list of its nodes."""
    span = np.maximum(np.ptp(coords, axis=0), 1e-30)
    places = np.round((coords - coords.min(0)) / span * 1e4)
    shape = tuple(len(np.unique(column)) for column in places.T)
    if mesh == "structured" or math.prod(shape) != len(coords) or not _is_uniform(coords, shape):
        raise InputError(
            f"a list of {len(coords)} points does not tell the shape of a {mesh} mesh: a uniform "
            "grid with its first axis slowest would; give coords and values with their axes, such "
            'as --layout coords="x y c", or use --mesh cloud'
        )
    return shape
