"""Predictions for whole datasets and for folders of mesh files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from ono.data.array_writer import write_arrays
from ono.data.batches import Streamed, View, in_order
from ono.data.draft import Sources
from ono.data.info import Array, Channel
from ono.data.mesh_file import read_mesh
from ono.data.mesh_folder import mesh_files
from ono.data.mesh_writer import as_fields, write_fields
from ono.data.store import Dataset
from ono.data.table import read_table
from ono.data.task import output_places, window_for
from ono.errors import DataError, InputError
from ono.evaluate.operator import Operator
from ono.evaluate.predict import predict

Progress = Callable[[int, int], None]


def view_for(operator: Operator, dataset: Dataset, split: str) -> View:
    """Return the rows of a split as this operator takes them; refuse data of another kind."""
    card, info = operator.card, dataset.info
    for what, ours, theirs in (
        ("task", card.task, info.task),
        ("inputs", _names(card.inputs), _names(info.inputs)),
        ("parameters", _names(card.params), _names(info.params)),
        ("coordinates", str(card.mesh.dim), str(info.mesh.dim)),
        ("quadrature weights", str(card.weighted), str("weights" in info.files)),
    ):
        if ours != theirs:
            raise DataError(
                f"{dataset.path} does not fit this operator: its {what} are {theirs or 'none'}, "
                f"in training they were {ours or 'none'}"
            )
    places = output_places(dataset, tuple(channel.name for channel in card.outputs))
    window = window_for(dataset, card.history or None)
    return View(dataset, dataset.rows(split), 1, window, places)


def predict_rows(operator: Operator, view: View, batch: int = 8) -> Iterator[tuple[int, Array]]:
    """Yield each row and its prediction, [points channels] or [time points channels]."""
    operator.eval()
    source = Streamed(view, operator.normaliser.coord_low.device)
    for part in in_order(source, batch):
        with torch.no_grad():
            made = operator.answer(part).cpu().numpy()
        mask = part.domain.mask
        counts = [made.shape[-2]] * len(made) if mask is None else mask.sum(-1).tolist()
        for row, field, count in zip(part.rows.tolist(), made, counts, strict=True):
            yield row, field[..., :count, :]


def predict_to_arrays(operator: Operator, view: View, out: Path) -> tuple[int, ...]:
    """Write the predictions of a view, an array for each output; return the shape of the first.

    Grids keep their axes. A ragged cloud has its points end to end, and `offsets` beside them.
    """
    fields = [field for _, field in predict_rows(operator, view)]
    names = [channel.name for channel in operator.card.outputs]
    if view.dataset.offsets is not None:
        made = np.concatenate(fields, -2)
        ends = np.cumsum([field.shape[-2] for field in fields])
        more = {"offsets": np.concatenate(([0], ends)).astype(np.int64)}
    else:
        made, more = np.stack(fields), {}
        if view.shape is not None:
            made = made.reshape(*made.shape[:-2], *view.shape, made.shape[-1])
    channels = {name: made[..., k] for k, name in enumerate(names)}
    if out.suffix.lower() == ".npy" and not more:
        channels = {"outputs": made if len(names) > 1 else made[..., 0]}
    write_arrays(out, {**channels, **more})
    first: Array = next(iter(channels.values()))
    return first.shape


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
    chosen = [s for c in operator.card.outputs for s in sources.outputs if s.channel == c.name]
    out.mkdir(parents=True, exist_ok=True)
    for done, (row, field) in enumerate(predict_rows(operator, view), 1):
        file = Path(sources.folder) / sources.rows[row].file
        write_fields(file, out / file.name, as_fields(field, chosen))
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
) -> int:
    """Predict on new mesh files and write them again with the predictions.

    They need the fields that were inputs in training. Numbers of a sample come from tables, or
    from the field data of the files.
    """
    fields = operator.card.fields
    if fields is None:
        raise InputError("this operator was not trained on mesh files; give arrays with --inputs")
    files = mesh_files(folder)
    known = [channel.name for channel in operator.card.params]
    numbers = _numbers(known, params, [file.name for file in files])
    chosen = [s for c in operator.card.outputs for s in fields.outputs if s.channel == c.name]
    out.mkdir(parents=True, exist_ok=True)
    if out.resolve() == folder.resolve():
        raise InputError(f"{out} holds the meshes themselves; choose another --out")
    for index, file in enumerate(files):
        names = list(dict.fromkeys(source.field for source in fields.inputs))
        mesh = read_mesh(file, names, () if numbers is not None else known)
        inputs = [mesh.fields[s.field][:, s.component] for s in fields.inputs]
        own = numbers[index] if numbers is not None else [mesh.numbers[name] for name in known]
        made = predict(
            operator,
            np.stack(inputs, -1)[None] if inputs else None,
            coords=mesh.points[None, :, list(fields.coordinates)],
            weights=mesh.weights if operator.card.weighted else None,
            params=np.asarray(own)[None] if known else None,
        )
        write_fields(file, out / file.name, as_fields(made.values[0], chosen))
        if progress is not None:
            progress(index + 1, len(files))
    return len(files)


def _numbers(known: Sequence[str], tables: Sequence[str], files: Sequence[str]) -> Array | None:
    """Return the numbers of each file from tables, in the order of training."""
    if not tables:
        return None
    names: list[str] = []
    parts = []
    for table in tables:
        header, numbers = read_table(Path(table), files)
        names += header
        parts.append(numbers)
    if missing := [name for name in known if name not in names]:
        raise InputError(f"{', '.join(tables)} lacks {', '.join(missing)}")
    return np.concatenate(parts, 1)[:, [names.index(name) for name in known]]


def _names(channels: Sequence[Channel]) -> str:
    return ", ".join(channel.name for channel in channels)
