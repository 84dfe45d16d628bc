"""`ono predict`: apply a trained operator to arrays, a dataset, or mesh files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ono.cli.options import refuse
from ono.errors import InputError

if TYPE_CHECKING:
    from ono.data.info import Array
    from ono.data.layout import Axes, Role
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
    inputs: Annotated[
        list[str] | None, typer.Option(help=f"Input values, {_FILE}. Repeat for several.")
    ] = None,
    coords: Annotated[
        list[str] | None,
        typer.Option(help=f"Points of the inputs, {_FILE}. Repeat for one list a coordinate."),
    ] = None,
    weights: Annotated[str | None, typer.Option(help=f"Quadrature weights, {_FILE}.")] = None,
    params: Annotated[
        list[str] | None, typer.Option(help=f"Numbers of the samples, {_FILE}, or .csv tables.")
    ] = None,
    query: Annotated[str | None, typer.Option(help=f"Points to predict at, {_FILE}.")] = None,
    history: Annotated[
        list[str] | None,
        typer.Option(help=f"Roll-outs: the known frames, {_FILE}. Repeat for several."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Roll-outs: how many frames to predict.")
    ] = None,
    times: Annotated[str | None, typer.Option(help=f"When to predict, {_FILE}.")] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(help='Axes such as "b y x", or coords="y x c". Default: as in training.'),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Predict the samples of a dataset directory.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which samples of --data. Default: test.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Predict on a folder of new mesh files.")
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(min=1, help="Points at a time, if there are many."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Predict output fields from input fields, in the format that comes in."""
    from ono.data.array_writer import refuse_overwriting

    given = _Given(
        inputs or [],
        coords or [],
        weights,
        params or [],
        query,
        history or [],
        steps,
        times,
        chunk,
        layout or [],
    )
    if data is not None and source is not None:
        raise InputError("give arrays, or --data DIR, or --from FOLDER: one of the three")
    refuse_overwriting(out, given.files())
    if data is not None:
        refuse(f"{data} has all that is needed", **given.options(), params=params)
        _predict_dataset(run, device, data, split or "test", out)
        return
    refuse("it chooses among the samples of --data", split=split)
    if source is not None:
        refuse("--from reads mesh files and predicts at their points", **given.options())
        _predict_meshes(run, device, source, out, given.params)
    else:
        _predict_arrays(run, device, given, out)


@dataclass(frozen=True, slots=True)
class _Given:
    """What the options say, where a prediction is for arrays: files, and how to take them."""

    inputs: list[str]
    coords: list[str]
    weights: str | None
    params: list[str]
    query: str | None
    history: list[str]
    steps: int | None
    times: str | None
    chunk: int | None
    layout: list[str]

    def options(self) -> dict[str, object]:
        """Return all but the params, which mesh files take too."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "params"}

    def files(self) -> list[Path]:
        """Return every file that is read."""
        from ono.data.array_files import parse_source

        several = [*self.inputs, *self.coords, *self.history, *self.params]
        texts = [*several, self.weights, self.query, self.times]
        return [parse_source(text)[0] for text in texts if text is not None]

    def roles(self) -> dict[Role, list[str]]:
        """Return the files that have samples and points, by their role in an import."""
        return {
            "inputs": self.inputs,
            "outputs": self.history,
            "coords": self.coords,
            "weights": [] if self.weights is None else [self.weights],
        }


def _predict_arrays(run: Path, device: str, given: _Given, out: Path) -> None:
    from ono.cli.array_options import read_layouts
    from ono.data.array_writer import refuse_unwritable
    from ono.evaluate.given_files import read_files
    from ono.evaluate.given_params import read_params
    from ono.evaluate.predict import predict as evaluate
    from ono.evaluate.predict_data import names_in

    refuse_unwritable(out, ())
    said, query, times = read_layouts(given.layout), _read(given.query), _read(given.times)
    operator = _load(run, device)
    refuse_unwritable(out, names_in(out, operator))
    files = read_files(operator.card, given.roles(), said)
    _tell_axes(files.axes)
    params = [channel.name for channel in operator.card.params]
    prediction = evaluate(
        operator,
        files.arrays.get("inputs"),
        coords=files.arrays.get("coords"),
        weights=files.arrays.get("weights"),
        params=read_params(params, given.params, axes=files.layouts.get("params")),
        query=query,
        history=files.arrays.get("outputs"),
        steps=given.steps,
        times=times,
        chunk=given.chunk,
    )
    if files.bare is not None and query is None:
        prediction = replace(prediction, bare=files.bare)
    _write_arrays(operator, prediction, out, files.layouts.get("outputs"))


def _tell_axes(axes: Mapping[Role, Axes]) -> None:
    """Say how arrays were read, if one of them has its axes in another order than the store."""
    from ono.data.told_layouts import is_plain

    if not all(map(is_plain, axes.values())):
        options = {role: "history" if role == "outputs" else role for role in axes}
        told = ", ".join(f"{options[role]} as [{' '.join(axes[role])}]" for role in axes)
        typer.echo(f"read {told}")


def _load(run: Path, device: str) -> Operator:
    from ono.device import choose_device
    from ono.evaluate.operator import Operator

    return Operator.load(run, choose_device(device))


def _read(text: str | None) -> Array | None:
    from ono.data.array_files import parse_source, read_array

    return None if text is None else read_array(*parse_source(text))


def _write_arrays(
    operator: Operator, prediction: Prediction, out: Path, wanted: Axes | None
) -> None:
    from ono.data.array_writer import write_arrays
    from ono.data.told_layouts import is_plain
    from ono.evaluate.answer_axes import turn
    from ono.evaluate.predict_data import by_channel

    arrays = {"outputs": prediction.values}
    if out.suffix.lower() != ".npy":
        arrays = by_channel(operator, prediction.fields)
    order = ""
    if wanted is not None and not is_plain(wanted):
        timed = operator.card.task != "steady"
        for name, array in arrays.items():
            channels = array.ndim == prediction.fields.ndim
            arrays[name], axes = turn(array, wanted, timed=timed, channels=channels)
            order = f" as [{' '.join(axes)}]"
    write_arrays(out, arrays)
    _warn_of_outside([prediction.outside], "samples", prediction.doubts)
    shape = " ".join(map(str, next(iter(arrays.values())).shape))
    typer.echo(f"wrote {out}: {_outputs(operator)}, shape [{shape}]{order}")
    _tell_renamed(operator, out)


def _predict_dataset(run: Path, device: str, data: Path, split: str, out: Path) -> None:
    from ono.cli.progress import counting
    from ono.data.array_writer import FORMATS
    from ono.data.store import Dataset
    from ono.evaluate.predict_data import points_outside, predict_to_arrays, view_for
    from ono.evaluate.predict_meshes import predict_to_meshes
    from ono.evaluate.unfamiliar import tell_of_view

    operator = _load(run, device)
    view = view_for(operator, Dataset.open(data), split)
    if out.suffix.lower() in FORMATS:
        shape = " ".join(map(str, predict_to_arrays(operator, view, out)))
        _warn_of_outside(points_outside(operator, view), "samples", tell_of_view(operator, view))
        typer.echo(f"wrote {out}: {_outputs(operator)}, {len(view)} samples, shape [{shape}]")
        _tell_renamed(operator, out)
        return
    with counting("predicting") as progress:
        count = predict_to_meshes(operator, view, out, progress)
    _warn_of_outside(points_outside(operator, view), "files", tell_of_view(operator, view))
    typer.echo(f"wrote {count} mesh files to {out}: {_outputs(operator)}")


def _predict_meshes(run: Path, device: str, source: Path, out: Path, params: Sequence[str]) -> None:
    from ono.cli.progress import counting
    from ono.evaluate.predict_meshes import predict_folder

    operator = _load(run, device)
    notes: list[str] = []
    with counting("predicting") as progress:
        outside = predict_folder(
            operator, source, out, params=params, progress=progress, notes=notes
        )
    for note in notes:
        typer.echo(f"note: {note}")
    _warn_of_outside(outside, "files")
    typer.echo(f"wrote {len(outside)} mesh files to {out}: {_outputs(operator)}")


def _warn_of_outside(counts: Sequence[int], of: str, doubts: Sequence[str] = ()) -> None:
    """Say how many points lie where the operator has not learned, and what else it does not know.

    The counts are of one mesh or of many.
    """
    told = list(doubts)
    if any(counts):
        where = f", in {sum(map(bool, counts))} of {len(counts)} {of}" if len(counts) > 1 else ""
        told.insert(0, f"{sum(counts)} points lie outside the box of the training data{where}")
    for doubt in told:
        typer.echo(f"warning: {doubt}", err=True)


def _tell_renamed(operator: Operator, out: Path) -> None:
    """Say what channels are called in a file whose format does not take their names."""
    from ono.data.array_writer import renamed_in

    names = renamed_in(out, [channel.name for channel in operator.card.outputs])
    if names:
        told = ", ".join(f"{name!r} as {plain}" for name, plain in names.items())
        typer.echo(f"note: MATLAB takes plain names only: {told}")


def _outputs(operator: Operator) -> str:
    return ", ".join(f"{c.name} [{c.unit}]" for c in operator.card.outputs)
