"""One new mesh file as the arrays of a prediction, if it is like the meshes of training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ono.data.info import Array
from ono.data.mesh_file import TO_TETRAHEDRA, MeshFile, read_mesh
from ono.data.mesh_folder import COMPONENTS, FLAT, still
from ono.data.sources import MeshFields
from ono.errors import InputError
from ono.evaluate.operator import Operator

_TRAIN = "import meshes like it and train on them"


@dataclass(frozen=True, slots=True)
class Case:
    """One mesh file as the arrays of a prediction."""

    inputs: Array | None
    coords: Array
    weights: Array | None
    params: Array | None


def read_case(operator: Operator, fields: MeshFields, file: Path, row: Array | None) -> Case:
    """Read a mesh file; `row` are its numbers, None if they are in its field data."""
    known = [channel.name for channel in operator.card.params]
    names = list(dict.fromkeys(source.field for source in fields.inputs))
    mesh = read_mesh(file, names, known if row is None else ())
    _refuse_other_coordinates(fields, mesh)
    for name in names:
        _refuse_other_components(fields, mesh, name)
    if operator.card.weighted and mesh.weights is None:
        what, way = "no cells of a known type", "write the file with its cells"
        if mesh.polyhedra:
            what, way = "polyhedra, of no known size,", TO_TETRAHEDRA
        raise InputError(
            f"{file} has {what} to weigh its points by, and this operator was trained with "
            f"quadrature weights; {way}"
        )
    inputs = [mesh.fields[source.field][:, source.component] for source in fields.inputs]
    numbers = np.array([mesh.numbers[name] for name in known]) if row is None else row
    return Case(
        np.stack(inputs, -1)[None] if inputs else None,
        mesh.points[None, :, list(fields.coordinates)],
        mesh.weights if operator.card.weighted else None,
        numbers[None] if known else None,
    )


def _refuse_other_coordinates(fields: MeshFields, mesh: MeshFile) -> None:
    """Refuse a mesh that varies where those of training did not, or does not where they did."""
    count = mesh.points.shape[1]
    if max(fields.coordinates) >= count:
        raise InputError(
            f"{mesh.path} has points of {count} coordinates, in training they had "
            f"{max(fields.coordinates) + 1} or more"
        )
    flat, kept = still([mesh]), ", ".join(COMPONENTS[k] for k in fields.coordinates)
    low, high = mesh.points.min(0), mesh.points.max(0)
    for k in range(count):
        if k not in fields.coordinates and not flat[k]:
            raise InputError(
                f"{mesh.path} reaches from {low[k]:.6g} to {high[k]:.6g} in {COMPONENTS[k]}, which "
                f"was the same everywhere in training, so this operator sees {kept} only; turn the "
                f"mesh as those of training lay, or {_TRAIN}"
            )
    for k in fields.varying:
        if flat[k]:
            raise InputError(
                f"{mesh.path} has one {COMPONENTS[k]} everywhere, {low[k]:.6g}, and every mesh of "
                f"training varied in {kept}; turn the mesh as those lay, or {_TRAIN}"
            )


def _refuse_other_components(fields: MeshFields, mesh: MeshFile, name: str) -> None:
    """Refuse a scalar that became a vector, or a vector that left the plane it had."""
    sources = [source for source in fields.inputs if source.field == name]
    values, trained = mesh.fields[name], sources[0].components
    count = values.shape[1]
    if trained is None:
        for source in sources:
            if source.component >= count:
                raise InputError(
                    f"{mesh.path} has {name!r} with {count} components; {source.channel} is "
                    f"component {source.component + 1}"
                )
        return
    if count != trained:
        raise InputError(
            f"{mesh.path} has {name!r} with {count} components, in training it had {trained}; "
            f"write it as it was there, or {_TRAIN}"
        )
    unseen = [k for k in range(count) if k not in {source.component for source in sources}]
    if (abs(values[:, unseen]) > FLAT * abs(values).max()).any():
        raise InputError(
            f"{mesh.path} has {name!r} with values in {COMPONENTS[unseen[0]]}, which was zero in "
            f"training, so this operator does not see it; make it zero, or {_TRAIN}"
        )
