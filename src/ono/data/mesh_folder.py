"""Read a folder of mesh files, one sample each, into a draft of a dataset.

Fields are taken by name from the data at points, else from the data on cells, which is averaged to
points weighted by cell size. A coordinate that is the same everywhere is dropped. Weights are the
cells shared out to their nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ono.data.draft import Draft
from ono.data.info import Array, ArrayName, Channel, Mesh, Scalar
from ono.data.lost_digits import refuse_lost_digits
from ono.data.mesh_file import MeshFile, read_mesh
from ono.data.placement import single
from ono.data.sources import FieldSource, MeshSource, Sources
from ono.data.table import read_table
from ono.errors import InputError
from ono.files import sha256

SUFFIXES = (".vtu", ".vtk", ".msh", ".xdmf")
COMPONENTS = "xyz"
FLAT = 1e-12
"""A coordinate that varies less than this part of the mesh is the same everywhere."""


def mesh_files(folder: Path) -> list[Path]:
    """Return the mesh files of a folder in natural order: case2 before case10.

    Names that begin with a dot are what systems keep about files, such as ._case2.vtu on macOS.
    """
    if not folder.is_dir():
        hint = f"; give the folder it lies in, {folder.parent}" if folder.is_file() else ""
        raise InputError(f"{folder} is not a folder of mesh files{hint}")
    found = [path for path in folder.iterdir() if path.is_file() and path.name[0] != "."]
    files = [path for path in found if path.suffix.lower() in SUFFIXES]
    if not files:
        other = sum(path.suffix.lower() == ".vtp" for path in found)
        hint = f"; convert its {other} .vtp files to .vtu, for example in ParaView" if other else ""
        raise InputError(f"{folder} holds no mesh files ({', '.join(SUFFIXES)}){hint}")
    return sorted(files, key=lambda path: natural(path.name))


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers in names by value.

    >>> sorted(["case10.vtu", "case2.vtu"], key=natural)
    ['case2.vtu', 'case10.vtu']
    """
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def read_mesh_folder(
    folder: Path,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    params: Sequence[str] = (),
) -> Draft:
    """Read every mesh file of a folder.

    `params` are names of the files' own field data, or one CSV table.
    """
    if not outputs:
        raise InputError("there is nothing to predict; name fields of the files with --outputs")
    paths = mesh_files(folder)
    tables = [name for name in params if name.lower().endswith(".csv")]
    own = [name for name in params if name not in tables]
    wanted = [*inputs, *outputs]
    files = [read_mesh(path, wanted, own) for path in paths]
    columns, notes = _columns(files)
    names, numbers, order = _params(files, own, tables)
    notes += order
    if not inputs and not names and _same_points(files):
        raise InputError(
            "nothing tells the samples apart: all files share one mesh; give --inputs or --params"
        )
    for name in wanted:
        _refuse_unusable(files, name)
    in_sources, out_sources = (_channels(files, group, columns) for group in (inputs, outputs))
    mesh, arrays, told = _assemble(files, columns, in_sources, out_sources)
    if names:
        arrays["params"] = _single_params(names, numbers)
    averaged = sorted({name for name in wanted if files[0].at[name] == "cell"})
    if averaged:
        notes.append(f"cell data averaged to points by cell size: {', '.join(averaged)}")
    settings: dict[str, Scalar] = {"samples": f"{len(files)} mesh files of {folder.name}"}
    rows = tuple(
        MeshSource(file=f.path.name, sha256=sha256(f.path), points=len(f.points)) for f in files
    )
    return Draft(
        task="steady",
        mesh=mesh,
        inputs=tuple(Channel(name=source.channel) for source in in_sources),
        outputs=tuple(Channel(name=source.channel) for source in out_sources),
        params=tuple(Channel(name=name) for name in names),
        samples=len(files),
        arrays=arrays,
        settings=settings,
        notes=(*notes, *told),
        sources=Sources(
            folder=str(folder.resolve()),
            coordinates=columns,
            varying=tuple(k for k in columns if not any(still([file])[k] for file in files)),
            inputs=tuple(in_sources),
            outputs=tuple(out_sources),
            rows=rows,
        ),
    )


def _columns(files: Sequence[MeshFile]) -> tuple[tuple[int, ...], list[str]]:
    """Return which coordinates to keep: all that change, be it on a plane x-z or y-z."""
    dims = {file.points.shape[1] for file in files}
    if len(dims) > 1:
        raise InputError(f"the files have points of {' and '.join(map(str, sorted(dims)))} numbers")
    kept = tuple(np.flatnonzero(~still(files)).tolist()) or (0,)
    dropped = ", ".join(COMPONENTS[k] for k in range(dims.pop()) if k not in kept)
    notes = [f"coordinate {dropped} is the same everywhere: dropped"] if dropped else []
    return kept, notes


def still(files: Sequence[MeshFile]) -> Array:
    """Tell of each coordinate whether it is the same at all points of all files."""
    low = np.min([file.points.min(0) for file in files], 0)
    high = np.max([file.points.max(0) for file in files], 0)
    size = np.maximum((high - low).max(), np.maximum(abs(low), abs(high)))
    same: Array = high - low <= FLAT * size
    return same


def _params(
    files: Sequence[MeshFile], own: Sequence[str], tables: Sequence[str]
) -> tuple[list[str], Array, list[str]]:
    names, parts = list(own), [np.array([[f.numbers[name] for name in own] for f in files])]
    notes: list[str] = []
    for path in tables:
        table = read_table(Path(path), [file.path.name for file in files])
        names += table.names
        parts.append(table.numbers)
        notes += table.notes
    return names, np.concatenate(parts, 1), notes


def _single_params(names: Sequence[str], numbers: Array) -> Array:
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float32)
    for k, name in enumerate(names):
        refuse_lost_digits(numbers[:, k, None], rounded[:, k, None], repr(name))
    return rounded


def _refuse_unusable(files: Sequence[MeshFile], name: str) -> None:
    """Refuse a field with values that are no numbers, or that single precision does not tell apart.

    Between files as within them: an offset that all have in common takes their digits.
    """
    largest = np.finfo(np.float32).max
    for file in files:
        values = file.fields[name]
        if bad := int(np.count_nonzero(~np.isfinite(values))):
            raise InputError(
                f"{bad} values of {name!r} in {file.path} are not finite; repair the file or take "
                "it out of the folder"
            )
        if lost := int(np.count_nonzero(abs(values) > largest)):
            raise InputError(
                f"{lost} values of {name!r} in {file.path} are too large for float32; scale them"
            )
    if len({file.fields[name].shape[1] for file in files}) == 1:  # else refused by its channels
        whole = np.concatenate([file.fields[name] for file in files])
        refuse_lost_digits(whole, whole.astype(np.float32), repr(name))


def _channels(
    files: Sequence[MeshFile], names: Sequence[str], columns: tuple[int, ...]
) -> list[FieldSource]:
    """Name the components of the fields; those of a vector that leave a plane mesh and are zero
    are left out.
    """
    sources = []
    for name in names:
        counts = {file.fields[name].shape[1]: file.path.name for file in reversed(files)}
        places = {file.at[name]: file.path.name for file in reversed(files)}
        for what, seen in (("components", counts), ("data", places)):
            if len(seen) > 1:
                told = ", ".join(f"{value} in {file}" for value, file in seen.items())
                raise InputError(f"the field {name!r} has different {what}: {told}")
        count = counts.popitem()[0]
        parts: Sequence[int] = range(count)
        across = [k for k in parts if k not in columns]
        if count == 3 and not any(file.fields[name][:, across].any() for file in files):
            parts = columns
        vector = 1 < count <= 3
        sources += [
            FieldSource(
                channel=name if len(parts) == 1 else f"{name}_{COMPONENTS[k] if vector else k}",
                field=name,
                component=k,
                components=count,
                at=files[0].at[name],
            )
            for k in parts
        ]
    return sources


def _same_points(files: Sequence[MeshFile]) -> bool:
    return all(np.array_equal(file.points, files[0].points) for file in files)


def _assemble(
    files: Sequence[MeshFile],
    columns: tuple[int, ...],
    inputs: Sequence[FieldSource],
    outputs: Sequence[FieldSource],
) -> tuple[Mesh, dict[ArrayName, Array], list[str]]:
    """Lay the samples side by side if they have one number of points, else end to end."""

    def pick(file: MeshFile, sources: Sequence[FieldSource]) -> Array:
        parts = [file.fields[source.field][:, source.component] for source in sources]
        return np.stack(parts, -1) if parts else np.zeros((len(file.points), 0))

    shared = _same_points(files)
    ragged = len({len(file.points) for file in files}) > 1
    rows: dict[ArrayName, list[Array]] = {
        "coords": [single(file.points[:, columns], str(file.path)) for file in files],
        "inputs": [pick(file, inputs) for file in files],
        "outputs": [pick(file, outputs) for file in files],
    }
    notes, weights = [], [file.weights for file in files if file.weights is not None]
    if len(weights) == len(files):
        rows["weights"] = weights
        notes.append("quadrature weights from the cells")
        if lone := sum(int(np.count_nonzero(own == 0)) for own in weights):
            notes.append(f"{lone} points belong to no cell that has a size: they weigh nothing")
    elif with_polyhedra := sum(file.polyhedra for file in files):
        notes.append(f"no weights: {with_polyhedra} files have polyhedra, of no known size")
    elif weights:
        notes.append("no weights: some files have no cells of a known type")
    join = np.concatenate if ragged else np.stack
    arrays = {name: join(parts).astype(np.float32) for name, parts in rows.items()}
    if shared:
        arrays["coords"] = arrays["coords"][0]
    if ragged:
        counts = [len(file.points) for file in files]
        arrays["offsets"] = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    if shared and "weights" in rows and all(np.array_equal(w, weights[0]) for w in weights):
        arrays["weights"] = arrays["weights"][0]
    return Mesh(kind="cloud", dim=len(columns), shared=shared), arrays, notes
