"""`ono predict`: apply a trained operator to arrays, a dataset, or mesh files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ono.errors import InputError

if TYPE_CHECKING:
    from ono.data.info import Array
    from ono.evaluate.operator import Operator
    from ono.evaluate.predict import Prediction

_FILE = "FILE[:KEY] of .npy, .npz, .mat or .h5"


def predict(
    run: Annotated[
        Path, typer.Argument(help="A run, checkpoint or operator directory.", metavar="RUN")
    ],
    out: Annotated[
        Path,
        typer.Option(help="A .npy, .npz, .mat or .h5 file, or a folder for mesh files."),
    ],
    inputs: Annotated[str | None, typer.Option(help=f"Input values, {_FILE}.")] = None,
    coords: Annotated[str | None, typer.Option(help=f"Points of the inputs, {_FILE}.")] = None,
    weights: Annotated[str | None, typer.Option(help=f"Quadrature weights, {_FILE}.")] = None,
    params: Annotated[
        list[str] | None, typer.Option(help=f"Numbers of the samples, {_FILE}, or .csv tables.")
    ] = None,
    query: Annotated[str | None, typer.Option(help=f"Points to predict at, {_FILE}.")] = None,
    history: Annotated[
        str | None, typer.Option(help=f"Roll-outs: the known frames, {_FILE}.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Roll-outs: how many frames to predict.")
    ] = None,
    times: Annotated[str | None, typer.Option(help=f"When to predict, {_FILE}.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Predict the samples of a dataset directory.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which samples of --data.")] = "test",
    source: Annotated[
        Path | None, typer.Option("--from", help="Predict on a folder of new mesh files.")
    ] = None,
    chunk: Annotated[int, typer.Option(min=1, help="Query points at a time.")] = 1 << 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Predict output fields from input fields, in the format that comes in."""
    from ono.device import choose_device
    from ono.evaluate.operator import Operator
    from ono.evaluate.predict import predict as evaluate

    given = (inputs, coords, weights, query, history, times)
    if (data is not None) + (source is not None) + any(g is not None for g in given) > 1:
        raise InputError("give arrays, or --data DIR, or --from FOLDER: one of the three")
    if source is None and data is None:
        _refuse_other_formats(out)
        values, places, measure = _read(inputs), _read(coords), _read(weights)
        points, frames, when = _read(query), _read(history), _read(times)
        numbers = _read_params(params or [])
        operator = Operator.load(run, choose_device(device))
        prediction = evaluate(
            operator,
            values,
            coords=places,
            weights=measure,
            params=numbers,
            query=points,
            history=frames,
            steps=steps,
            times=when,
            chunk=chunk,
        )
        _write_arrays(operator, prediction, out)
        return
    operator = Operator.load(run, choose_device(device))
    if source is not None:
        _predict_meshes(operator, source, out, params or [])
    elif data is not None:
        _predict_dataset(operator, data, split, out)


def _read(text: str | None) -> Array | None:
    from ono.data.array_files import parse_source, read_array

    return None if text is None else read_array(*parse_source(text))


def _read_params(texts: list[str]) -> Array | None:
    import numpy as np

    from ono.data.table import read_table

    parts = [
        read_table(Path(text))[1] if text.lower().endswith(".csv") else _read(text)
        for text in texts
    ]
    columns = [part if part.ndim > 1 else part[:, None] for part in parts if part is not None]
    return np.concatenate(columns, 1) if columns else None


def _refuse_other_formats(out: Path) -> None:
    from ono.data.array_writer import refuse_unwritable

    refuse_unwritable(out, ("outputs",))


def _write_arrays(operator: Operator, prediction: Prediction, out: Path) -> None:
    from ono.data.array_writer import write_arrays

    write_arrays(out, {"outputs": prediction.values})
    if prediction.outside:
        typer.echo(
            f"warning: {prediction.outside} points lie outside the box of the training data",
            err=True,
        )
    shape = " ".join(map(str, prediction.values.shape))
    typer.echo(f"wrote {out}: {_outputs(operator)}, shape [{shape}]")


def _predict_dataset(operator: Operator, data: Path, split: str, out: Path) -> None:
    from ono.cli.progress import counting
    from ono.data.array_writer import FORMATS
    from ono.data.store import Dataset
    from ono.evaluate.predict_data import predict_to_arrays, predict_to_meshes, view_for

    view = view_for(operator, Dataset.open(data), split)
    if out.suffix.lower() in FORMATS:
        shape = " ".join(map(str, predict_to_arrays(operator, view, out)))
        typer.echo(f"wrote {out}: {_outputs(operator)}, {len(view)} samples, shape [{shape}]")
        return
    with counting("predicting") as progress:
        count = predict_to_meshes(operator, view, out, progress)
    typer.echo(f"wrote {count} mesh files to {out}: {_outputs(operator)}")


def _predict_meshes(operator: Operator, source: Path, out: Path, params: list[str]) -> None:
    from ono.cli.progress import counting
    from ono.evaluate.predict_data import predict_folder

    with counting("predicting") as progress:
        count = predict_folder(operator, source, out, params=params, progress=progress)
    typer.echo(f"wrote {count} mesh files to {out}: {_outputs(operator)}")


def _outputs(operator: Operator) -> str:
    return ", ".join(f"{c.name} [{c.unit}]" for c in operator.card.outputs)
