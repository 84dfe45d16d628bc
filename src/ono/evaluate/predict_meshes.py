"""Predictions for mesh files, written onto copies of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from ono.data.info import Array
from ono.data.mesh_folder import mesh_files
from ono.data.mesh_writer import as_fields, refuse_overwriting_meshes, write_fields
from ono.data.sources import FieldSource, MeshFields, Sources
from ono.data.store import explain_os_errors
from ono.data.view import View
from ono.errors import DataError, InputError
from ono.evaluate.given import understand
from ono.evaluate.given_mesh import read_case
from ono.evaluate.given_params import read_params
from ono.evaluate.operator import Operator
from ono.evaluate.predict import predict
from ono.evaluate.predict_data import predict_rows
from ono.files import sha256

Progress = Callable[[int, int], None]


def predict_to_meshes(
    operator: Operator, view: View, out: Path, progress: Progress | None = None
) -> int:
    """Write the predictions of a view onto copies of the mesh files it was imported from."""
    sources = Sources.read(view.dataset.path)
    if sources is None:
        raise InputError(
            f"{view.dataset.path} was not imported from mesh files; end --out in .npy, .npz, .mat "
            "or .h5"
        )
    files = _source_files(view, sources)
    _refuse_place(operator, sources, files.values(), out)
    write = _writer(operator, sources)
    with _folder(out):
        for done, (row, field) in enumerate(predict_rows(operator, view), 1):
            write(files[row], out, field)
            if progress is not None:
                progress(done, len(view))
    return len(view)


def predict_folder(
    operator: Operator,
    folder: Path,
    out: Path,
    *,
    params: Sequence[str] = (),
    progress: Progress | None = None,
    notes: list[str] | None = None,
) -> list[int]:
    """Predict on new mesh files and write them again with the predictions.

    They need the fields that were inputs in training. Numbers of a sample come from tables, or
    from the field data of the files. All files are read and judged before the first is written.
    Return of each file how many points lie outside the box of the training data; `notes` get what
    was decided about the rows of tables, and which files are unlike training in other ways.
    """
    fields = operator.card.fields
    if fields is None:
        raise InputError("this operator was not trained on mesh files; give arrays with --inputs")
    files = mesh_files(folder)
    _refuse_place(operator, fields, files, out)
    known = [channel.name for channel in operator.card.params]
    numbers = read_params(known, params, [file.name for file in files], notes=notes)
    own: Sequence[Array | None] = [None] * len(files) if numbers is None else list(numbers)
    for file, row in zip(files, own, strict=True):
        case = read_case(operator, fields, file, row)
        try:
            understand(
                operator,
                case.inputs,
                coords=case.coords,
                weights=case.weights,
                params=case.params,
                history=None,
            )
        except InputError as error:
            raise InputError(f"{file}: {error}") from None
    write = _writer(operator, fields)
    outside, unlike = [], []
    with _folder(out):
        for done, (file, row) in enumerate(zip(files, own, strict=True), 1):
            case = read_case(operator, fields, file, row)
            made = predict(
                operator,
                case.inputs,
                coords=case.coords,
                weights=case.weights,
                params=case.params,
            )
            write(file, out, made.fields[0])
            outside.append(made.outside)
            unlike += [f"{file.name}: {'; '.join(made.doubts)}"] if made.doubts else []
            if progress is not None:
                progress(done, len(files))
    if notes is not None and unlike:
        others = f" (and {len(unlike) - 1} more files like it)" if len(unlike) > 1 else ""
        notes.append(unlike[0] + others)
    return outside


def _writer(operator: Operator, fields: MeshFields) -> Callable[[Path, Path, Array], None]:
    """Return what writes predictions [points channels] onto a copy of a mesh file."""
    chosen = _chosen(operator, fields)

    def write(file: Path, out: Path, made: Array) -> None:
        write_fields(file, out / file.name, as_fields(made, chosen, fields.outputs))

    return write


def _chosen(operator: Operator, fields: MeshFields) -> list[FieldSource]:
    return [s for c in operator.card.outputs for s in fields.outputs if s.channel == c.name]


def _source_files(view: View, sources: Sources) -> dict[int, Path]:
    """Return the mesh file of every row of a view; refuse those that are gone or were changed."""
    files = {}
    for row in view.rows:
        source = sources.rows[row]
        file = Path(sources.folder) / source.file
        if not file.is_file():
            raise InputError(
                f"{file} is gone, which row {row} of {view.dataset.path} was imported from; put it "
                "back, give the folder it is in now with --from, or end --out in .npz"
            )
        if sha256(file) != source.sha256:
            raise DataError(
                f"{file} was changed since it was imported; restore it, predict on the folder with "
                "--from, or end --out in .npz"
            )
        files[row] = file
    return files


def _refuse_place(
    operator: Operator, fields: MeshFields, files: Collection[Path], out: Path
) -> None:
    """Refuse a place that is no folder, or where files would be lost."""
    if any(out.resolve() == file.parent.resolve() for file in files):
        raise InputError(f"{out} holds the meshes themselves; choose another --out")
    if out.suffix and not out.is_dir():
        raise InputError(
            f"mesh files are written into a folder, and {out} looks like a file; choose a name "
            f"without {out.suffix}"
        )
    chosen = _chosen(operator, fields)
    nothing = np.zeros((1, len(chosen)))
    refuse_overwriting_meshes(files, out, as_fields(nothing, chosen, fields.outputs))


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Make a folder for mesh files; one that stays empty is removed."""
    existed = out.exists()
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if not existed and not any(out.iterdir()):
            out.rmdir()
        raise
