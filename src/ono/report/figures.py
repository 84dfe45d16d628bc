"""The figures of a report, as pure functions: numbers in, a matplotlib Figure out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from ono.data.info import Array, Channel
from ono.report.charts import (
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
    key,
    title_of,
)
from ono.report.gallery import gallery
from ono.report.panels import KEY_ROOM, axes_at, blank_page, columns, heading

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


def samples_figure(
    samples: Sequence[Sample], inputs: Sequence[Channel], output: Channel, channel: int = 0
) -> Figure:
    """Draw input, truth, prediction and absolute error of one output channel.

    Truth and prediction share their colours; the error has the same colours in every sample.
    """
    shown = inputs[:2]
    lefts, panel = columns([*([True] * len(shown)), False, True, True], left=0.05)
    height = panel * max(sample.place.aspect for sample in samples)
    step = height + 0.42
    figure = blank_page(lefts[-1] + panel + KEY_ROOM, 0.3 + len(samples) * step)
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
            axes = axes_at(figure, lefts[column], top, panel, height)
            drawn = draw(axes, sample.place, field, scale)
            if column != len(shown):
                key(figure, axes, drawn, scale)
            if line == 0:
                heading(axes, titles[column], pad=19.0)
        text = f"row {sample.row}, relative L2 {sample.error:.4g}"
        y = 1 - (top - 0.06) / figure.get_figheight()
        x = lefts[0] / figure.get_figwidth()
        figure.text(x, y, f"{sample.label}: {text}", fontsize=SMALL, color=INK, va="bottom")
    return figure


def eigenfunctions_figure(eigen: Eigenfunctions) -> Figure:
    """Draw eigenfunctions as fields: a line for each head, largest eigenvalue first."""
    heads, count, _ = eigen.fields.shape
    left, space = 0.3, 0.1
    panel = min(1.7, (WIDTH - left - KEY_ROOM) / count - space)
    height = panel * eigen.place.aspect
    step = height + 0.3
    width = left + count * (panel + space) + KEY_ROOM
    figure = blank_page(width, heads * step + 0.05)
    # The few largest values would leave the rest pale.
    finite = np.abs(eigen.fields[np.isfinite(eigen.fields)])
    high = float(np.quantile(finite, 0.995)) if finite.size else 1.0
    scale = Scale(-(high or 1.0), high or 1.0, SIGNED)
    for line in range(heads):
        for column in range(count):
            box = (left + column * (panel + space), 0.25 + line * step, panel, height)
            axes = axes_at(figure, *box)
            drawn = draw(axes, eigen.place, eigen.fields[line, column], scale)
            mu = f"ψ{eigen.functions[line, column]}, μ {eigen.mu[line, column]:.3f}"
            axes.set_title(mu, fontsize=SMALL, color=MUTED, pad=3)
            if column == 0:
                axes.set_ylabel(f"head {eigen.heads[line]}", fontsize=SMALL, color=INK)
        key(figure, axes, drawn, scale)
    return figure
