"""Write fields onto mesh files: the mesh and the format stay, data at points is added."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ono.data.draft import FieldSource
from ono.data.info import Array
from ono.data.mesh_file import open_mesh
from ono.data.store import explain_os_errors
from ono.errors import DataError
from ono.files import replacing

ADDED = "_predicted"


def as_fields(values: Array, sources: Sequence[FieldSource]) -> dict[str, Array]:
    """Return channels [points channels] as the fields of a file, vectors put together again.

    >>> parts = [FieldSource(channel=f"v_{x}", field="v", component=k, at="point")
    ...          for k, x in enumerate("xy")]
    >>> as_fields(np.ones((5, 2)), parts)["v"].shape
    (5, 3)
    """
    fields: dict[str, Array] = {}
    for name in dict.fromkeys(source.field for source in sources):
        own = [k for k, source in enumerate(sources) if source.field == name]
        field = values[:, own]
        if len(own) == 2:  # viewers draw arrows for three components only
            field = np.pad(field, ((0, 0), (0, 1)))
        fields[name] = field[:, 0] if len(own) == 1 else field
    return fields


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
    kind = meshio.extension_to_filetypes[source.suffix.lower()][0]
    options = {"data_format": "XML"} if kind == "xdmf" else {}
    with explain_os_errors(out), replacing(out) as aside:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                meshio.write(aside, mesh, file_format=kind, **options)
        except OSError:
            raise
        except (Exception, SystemExit) as error:  # a writer may not know a kind of cell or data
            raise DataError(f"{out} cannot be written as {kind}: {error}") from None
