"""One mesh file as values at points: VTU, VTK, Gmsh or XDMF, read by meshio."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ono.data.cells import Cells, largest, lumped_weights, to_points
from ono.data.info import Array
from ono.errors import DataError, InputError, nearest

TO_TETRAHEDRA = "convert them to tetrahedra, for example with Tetrahedralize in ParaView"


@dataclass(frozen=True, slots=True)
class MeshFile:
    """One mesh file: points, fields at them [points components] and where each came from.

    One with `polyhedra` has no weights: their sizes are not known.
    """

    path: Path
    points: Array
    fields: dict[str, Array]
    at: dict[str, str]
    weights: Array | None
    polyhedra: bool
    numbers: dict[str, float]


def read_mesh(path: Path, names: Sequence[str], numbers: Sequence[str] = ()) -> MeshFile:
    """Read the named fields of one mesh file as values at its points."""
    mesh = open_mesh(path)
    points = np.asarray(mesh.points, np.float64)
    _refuse_lost_points(path, points)
    polyhedra = any(_is_polyhedra(block) for block in mesh.cells)
    blocks = [
        Cells(block.type, np.asarray(block.data), at)
        for at, block in enumerate(mesh.cells)
        if len(block.data) and not polyhedra
    ]
    fields: dict[str, Array] = {}
    at: dict[str, str] = {}
    for name in names:
        if name in mesh.point_data:
            value = np.asarray(mesh.point_data[name], np.float64)
            fields[name], at[name] = value.reshape(len(points), -1), "point"
        elif name in mesh.cell_data and polyhedra:
            raise InputError(
                f"{path} has {name!r} on polyhedra, whose sizes to average by are not known; "
                f"{TO_TETRAHEDRA}, or export {name!r} at points"
            )
        elif name in mesh.cell_data:
            fields[name], at[name] = _from_cells(path, mesh, name, blocks, points), "cell"
        else:
            known = [*mesh.point_data, *mesh.cell_data]
            hint = nearest(name, known) if known else "it has no fields"
            raise InputError(f"{path} has no field {name!r}; {hint}")
    values = {name: _number(path, mesh, name) for name in numbers}
    weights = lumped_weights(blocks, points)
    return MeshFile(path, points, fields, at, weights, polyhedra, values)


def _refuse_lost_points(path: Path, points: Array) -> None:
    if not len(points):
        raise InputError(f"{path} has no points; export it again, or take it out of the folder")
    if lost := np.flatnonzero(~np.isfinite(points).all(1)).tolist():
        where = ", ".join(f"{x:g}" for x in points[lost[0]])
        raise InputError(
            f"{path} has {len(lost)} points that lie nowhere, such as point {lost[0]} (counted "
            f"from 0) at ({where}); repair the file or take it out of the folder"
        )


def _is_polyhedra(block: Any) -> bool:
    """Tell polyhedra from cells of one shape; meshio adds how many points they have."""
    return block.type.startswith("polyhedron") and len(block.data) > 0


def open_mesh(path: Path) -> Any:
    """Return a mesh file as meshio sees it."""
    try:
        meshio = importlib.import_module("meshio")
    except ImportError:
        raise InputError(
            f'reading {path.name} needs meshio, which is not installed: pip install "ono[mesh]"'
        ) from None
    said = io.StringIO()
    try:
        # A file it cannot read makes meshio print and exit.
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return _with_cells_as_their_data(meshio.read(path))
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # a parser may meet anything in a damaged file
        if _is_series(path):
            raise InputError(
                f"{path} is a series of times, and a mesh file is one sample: save each time as a "
                "file of its own, or the whole series as arrays and import those with --times"
            ) from None
        text = " ".join(said.getvalue().split()) if isinstance(error, SystemExit) else str(error)
        raise DataError(
            f"{path} cannot be read as a mesh: {text or type(error).__name__}; it is damaged, cut "
            "short or of another kind: copy or export it again, or take it out of the folder"
        ) from None


def _with_cells_as_their_data(mesh: Any) -> Any:
    """Return a mesh with its polyhedra in the order of their data.

    meshio groups both by the number of points, and sorts the groups of the data only.
    """
    if all(map(_is_polyhedra, mesh.cells)):
        mesh.cells.sort(key=lambda block: int(block.type.removeprefix("polyhedron") or 0))
    return mesh


def _is_series(path: Path) -> bool:
    return path.suffix.lower() == ".xdmf" and b"Temporal" in path.read_bytes()


def _from_cells(path: Path, mesh: Any, name: str, blocks: Sequence[Cells], points: Array) -> Array:
    top = largest(blocks)
    values = [np.asarray(mesh.cell_data[name][block.block], np.float64) for block in top]
    if not top:
        raise InputError(f"{path} has {name!r} on cells, but no cells of a known type")
    value = to_points(top, [v.reshape(len(v), -1) for v in values], points)
    used = np.zeros(len(points), bool)
    for block in top:
        used[block.nodes] = True
    if lone := int(np.count_nonzero(~used)):
        raise InputError(
            f"{path} has {name!r} on cells and {lone} points that belong to no cell; remove them"
        )
    return value


def _number(path: Path, mesh: Any, name: str) -> float:
    if name not in mesh.field_data:
        known = ", ".join(mesh.field_data) or "none"
        raise InputError(
            f"{path} has no number {name!r} in its field data (it has {known}); put it there, or "
            "give a table of the files with --params table.csv"
        )
    value = np.asarray(mesh.field_data[name], np.float64)
    if value.size != 1:
        raise InputError(f"{path}: the field data {name!r} holds {value.size} numbers, wanted one")
    return float(value.ravel()[0])
