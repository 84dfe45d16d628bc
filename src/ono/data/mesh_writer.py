"""Write fields onto mesh files: the mesh and the format stay, data at points is added."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ono.data.info import Array
from ono.data.mesh_file import open_mesh
from ono.data.sources import FieldSource
from ono.data.store import explain_os_errors
from ono.errors import DataError, InputError
from ono.files import replacing

ADDED = "_predicted"
FORMATS = {".vtu": "vtu", ".vtk": "vtk", ".msh": "gmsh22", ".xdmf": "xdmf"}
"""What meshio calls the formats; left to itself it takes .msh for ANSYS, which has no data."""


def as_fields(
    values: Array, sources: Sequence[FieldSource], known: Sequence[FieldSource] | None = None
) -> dict[str, Array]:
    """Return channels [points channels] as the fields of a file, vectors put together again.

    `known` are all channels the fields had when they were imported. Where some are not among
    `sources` there is no vector to put together, and each component goes by its channel's name.

    >>> parts = [FieldSource(channel=f"v_{x}", field="v", component=k, at="point")
    ...          for k, x in enumerate("xy")]
    >>> as_fields(np.ones((5, 2)), parts)["v"].shape
    (5, 3)
    >>> list(as_fields(np.ones((5, 1)), parts[1:], parts))
    ['v_y']
    """
    fields: dict[str, Array] = {}
    for name in dict.fromkeys(source.field for source in sources):
        own = [(k, source) for k, source in enumerate(sources) if source.field == name]
        whole = sum(source.field == name for source in (sources if known is None else known))
        if len(own) < whole:
            fields |= {source.channel: values[:, k] for k, source in own}
        elif whole == 1:
            fields[name] = values[:, own[0][0]]
        else:  # viewers draw arrows for three components only
            last = max(source.component for _, source in own)
            fields[name] = np.zeros((len(values), max(3, last + 1)), values.dtype)
            for k, source in own:
                fields[name][:, source.component] = values[:, k]
    return fields


def refuse_overwriting_meshes(sources: Iterable[Path], out: Path, names: Iterable[str]) -> None:
    """Refuse a folder with files of these names, unless predictions of these fields made them.

    They did if a file has the data of its source, the predictions, and nothing else to lose.
    """
    added = {f"{name}{ADDED}" for name in names}
    for source in sources:
        if (out / source.name).exists() and not _is_prediction(out / source.name, source, added):
            raise InputError(
                f"{out / source.name} exists, and is not known as an earlier prediction for "
                f"{source}; choose an empty or a new folder for --out"
            )


def _is_prediction(file: Path, source: Path, added: set[str]) -> bool:
    try:
        made, given = open_mesh(file), open_mesh(source)
    except DataError:
        return False
    return (
        set(made.point_data) == set(given.point_data) | added
        and set(made.cell_data) == set(given.cell_data)
        and np.shape(made.points) == np.shape(given.points)
    )


def write_fields(source: Path, out: Path, fields: Mapping[str, Array]) -> None:
    """Write the mesh of `source` to `out` with more data at its points; complete or absent."""
    mesh = open_mesh(source)
    for name, values in fields.items():
        if len(values) != len(mesh.points):
            raise DataError(
                f"{source} has {len(mesh.points)} points, the prediction {len(values)}: the file "
                "was changed since it was imported"
            )
        mesh.point_data[f"{name}{ADDED}"] = np.asarray(values, np.float64)
    meshio: Any = importlib.import_module("meshio")
    kind = FORMATS[source.suffix.lower()]
    options = {"data_format": "XML"} if kind == "xdmf" else {}
    with explain_os_errors(out), replacing(out) as aside:
        try:
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                meshio.write(aside, mesh, file_format=kind, **options)
        except OSError:
            raise
        except (Exception, SystemExit) as error:  # a writer may not know a kind of cell or data
            raise DataError(f"{out} cannot be written as {kind}: {error}") from None
