"""The figures of a report, as pure functions: numbers in, a matplotlib Figure out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ono.data.info import Array, Channel
from ono.data.store import Dataset
from ono.report.charts import (
    DPI,
    WIDTH,
    Level,
    curves,
    error_distribution,
    resolution_figure,
)
from ono.report.fields import (
    ERROR,
    INK,
    MUTED,
    SIGNED,
    SMALL,
    Place,
    Scale,
    draw,
    drawable,
    key,
    title_of,
)

__all__ = [
    "Eigenfunctions",
    "Level",
    "Sample",
    "curves",
    "eigenfunctions_figure",
    "error_distribution",
    "gallery",
    "resolution_figure",
    "samples_figure",
]

_SHOWN_CHANNELS = 3
_GAP, _KEY_ROOM = 0.14, 0.72
_LARGEST_PANEL = 2.6


@dataclass(frozen=True, slots=True)
class Sample:
    """What an operator made of one sample; fields are [points channels]."""

    label: str
    row: int
    error: float
    place: Place
    inputs: Array
    truth: Array
    prediction: Array


@dataclass(frozen=True, slots=True)
class Eigenfunctions:
    """Some eigenfunctions of a layer at the points of one sample: fields [heads shown points]."""

    layer: int
    row: int
    place: Place
    heads: tuple[int, ...]
    functions: Array
    mu: Array
    fields: Array


def gallery(dataset: Dataset, rows: Sequence[int]) -> Figure:
    """Draw inputs and outputs of some samples, a line of pictures for each."""
    inputs = dataset.info.inputs[:_SHOWN_CHANNELS]
    outputs = dataset.info.outputs[:_SHOWN_CHANNELS]
    count = len(inputs) + len(outputs)
    samples = [_stored(dataset, row) for row in rows]
    lefts, panel = _columns([True] * count, left=0.3)
    height = panel * max((place.aspect for place, _, _ in samples), default=1.0)
    figure = _page(lefts[-1] + panel + _KEY_ROOM, 0.35 + len(samples) * (height + _GAP))
    when = "" if dataset.times is None else f", t = {float(dataset.times[-1]):.4g}"
    names = [title_of(c) for c in inputs] + [f"{title_of(c)}{when}" for c in outputs]
    for line, (row, (place, given, made)) in enumerate(zip(rows, samples, strict=True)):
        top = 0.35 + line * (height + _GAP)
        fields = [*given.T[: len(inputs)], *made.T[: len(outputs)]]
        for column, field in enumerate(fields):
            axes, scale = _axes(figure, lefts[column], top, panel, height), Scale.of(field)
            key(figure, axes, draw(axes, place, field, scale), scale)
            if line == 0:
                _title(axes, names[column])
            if column == 0:
                axes.set_ylabel(f"row {row}", fontsize=SMALL, color=MUTED)
    return figure


def samples_figure(
    samples: Sequence[Sample], inputs: Sequence[Channel], output: Channel, channel: int = 0
) -> Figure:
    """Draw input, truth, prediction and absolute error of one output channel.

    Truth and prediction share their colours; the error has the same colours in every sample.
    """
    shown = inputs[:2]
    lefts, panel = _columns([*([True] * len(shown)), False, True, True], left=0.05)
    height = panel * max(sample.place.aspect for sample in samples)
    step = height + 0.42
    figure = _page(lefts[-1] + panel + _KEY_ROOM, 0.3 + len(samples) * step)
    errors = [np.abs(s.prediction[:, channel] - s.truth[:, channel]) for s in samples]
    top_error = Scale(0.0, Scale.of(*errors).high, ERROR)
    name = title_of(output)
    titles = [*map(title_of, shown), f"{name}, truth", "prediction", "absolute error"]
    for line, (sample, error) in enumerate(zip(samples, errors, strict=True)):
        top = 0.3 + line * step + 0.27
        truth, prediction = sample.truth[:, channel], sample.prediction[:, channel]
        same = Scale.of(truth, prediction)
        fields = [*sample.inputs.T[: len(shown)], truth, prediction, error]
        scales = [*(Scale.of(field) for field in fields[: len(shown)]), same, same, top_error]
        for column, (field, scale) in enumerate(zip(fields, scales, strict=True)):
            axes = _axes(figure, lefts[column], top, panel, height)
            drawn = draw(axes, sample.place, field, scale)
            if column != len(shown):
                key(figure, axes, drawn, scale)
            if line == 0:
                _title(axes, titles[column], pad=19.0)
        text = f"row {sample.row}, relative L2 {sample.error:.4g}"
        y = 1 - (top - 0.06) / figure.get_figheight()
        x = lefts[0] / figure.get_figwidth()
        figure.text(x, y, f"{sample.label}: {text}", fontsize=SMALL, color=INK, va="bottom")
    return figure


def eigenfunctions_figure(eigen: Eigenfunctions) -> Figure:
    """Draw eigenfunctions as fields: a line for each head, largest eigenvalue first."""
    heads, count, _ = eigen.fields.shape
    left, space = 0.3, 0.1
    panel = min(1.7, (WIDTH - left - _KEY_ROOM) / count - space)
    height = panel * eigen.place.aspect
    step = height + 0.3
    width = left + count * (panel + space) + _KEY_ROOM
    figure = _page(width, heads * step + 0.05)
    # The few largest values would leave the rest pale.
    finite = np.abs(eigen.fields[np.isfinite(eigen.fields)])
    high = float(np.quantile(finite, 0.995)) if finite.size else 1.0
    scale = Scale(-(high or 1.0), high or 1.0, SIGNED)
    for line in range(heads):
        for column in range(count):
            box = (left + column * (panel + space), 0.25 + line * step, panel, height)
            axes = _axes(figure, *box)
            drawn = draw(axes, eigen.place, eigen.fields[line, column], scale)
            mu = f"ψ{eigen.functions[line, column]}, μ {eigen.mu[line, column]:.3f}"
            axes.set_title(mu, fontsize=SMALL, color=MUTED, pad=3)
            if column == 0:
                axes.set_ylabel(f"head {eigen.heads[line]}", fontsize=SMALL, color=INK)
        key(figure, axes, drawn, scale)
    return figure


def _stored(dataset: Dataset, row: int) -> tuple[Place, Array, Array]:
    """Return the points of a stored sample, its inputs and its last outputs, [points channels]."""
    mesh = dataset.info.mesh
    if dataset.offsets is None:
        coords = dataset.coords if mesh.shared else dataset.coords[row]
        inputs, outputs = dataset.inputs[row], dataset.outputs[row]
        outputs = outputs if dataset.times is None else outputs[-1]
    else:
        span = slice(int(dataset.offsets[row]), int(dataset.offsets[row + 1]))
        coords, inputs, outputs = dataset.coords[span], dataset.inputs[span], dataset.outputs[span]
        outputs = outputs if dataset.times is None else outputs[:, -1]
    return Place(coords, mesh.kind, mesh.shape), inputs, outputs


def _columns(keyed: Sequence[bool], left: float) -> tuple[list[float], float]:
    """Return where each picture of a line begins and how wide all are, in inches."""
    gaps = [_KEY_ROOM if has_key else _GAP for has_key in keyed]
    panel = min(_LARGEST_PANEL, (WIDTH - left - sum(gaps)) / len(keyed))
    lefts = [left + column * panel + sum(gaps[:column]) for column in range(len(keyed))]
    return lefts, panel


def _page(width: float, height: float) -> Figure:
    return Figure((width, height), dpi=DPI, facecolor="white")


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes by inches from the upper left corner."""
    w, h = figure.get_figwidth(), figure.get_figheight()
    return figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h))


def _title(axes: Axes, text: str, pad: float = 5.0) -> None:
    axes.set_title(
        drawable(text),
        fontsize=SMALL + 0.5,
        fontweight="bold",
        color=INK,
        pad=pad,
        loc="left",
        parse_math=False,
    )
