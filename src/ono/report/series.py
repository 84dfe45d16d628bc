"""Frames of a series side by side: what is true, what was predicted, and the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from ono.data.info import Array, Channel
from ono.report.charts import DPI, WIDTH
from ono.report.fields import ERROR, INK, MUTED, SMALL, Place, Scale, draw, drawable, key, title_of

_FRAMES = 5
_LEFT, _RIGHT, _TOP, _GAP = 0.3, 0.72, 0.5, 0.08


@dataclass(frozen=True, slots=True)
class Series:
    """What an operator made of the frames of one sample; fields are [time points channels]."""

    row: int
    place: Place
    times: Array
    truth: Array
    prediction: Array


def chosen_frames(count: int, shown: int = _FRAMES) -> list[int]:
    """Return frames spread evenly from the first to the last.

    >>> chosen_frames(20), chosen_frames(3)
    ([0, 5, 10, 14, 19], [0, 1, 2])
    """
    return sorted({round(x) for x in np.linspace(0, count - 1, min(count, shown))})


def series_figure(series: Series, output: Channel, channel: int = 0) -> Figure:
    """Draw truth, prediction and absolute error of one channel, a column for each time.

    Truth and prediction of all frames share their colours.
    """
    frames = chosen_frames(len(series.times))
    truth, prediction = (x[frames, :, channel] for x in (series.truth, series.prediction))
    error = np.abs(prediction - truth)
    same, worst = Scale.of(truth, prediction), Scale(0.0, Scale.of(error).high, ERROR)
    lines: Sequence[tuple[str, Array, Scale]] = (
        ("truth", truth, same),
        ("prediction", prediction, same),
        ("absolute error", error, worst),
    )
    panel = min(2.0, (WIDTH - _LEFT - _RIGHT) / len(frames) - _GAP)
    height = panel * series.place.aspect
    width = _LEFT + len(frames) * (panel + _GAP) + _RIGHT
    total = _TOP + len(lines) * (height + _GAP)
    figure = Figure((width, total), dpi=DPI, facecolor="white")
    for line, (label, fields, scale) in enumerate(lines):
        bottom = total - _TOP - (line + 1) * (height + _GAP) + _GAP
        for column, field in enumerate(fields):
            left = _LEFT + column * (panel + _GAP)
            box = (left / width, bottom / total, panel / width, height / total)
            axes = figure.add_axes(box)
            drawn = draw(axes, series.place, field, scale)
            if line == 0:
                when = f"t = {series.times[frames[column]]:.4g}"
                axes.set_title(when, fontsize=SMALL, color=MUTED, pad=3)
            if column == 0:
                axes.set_ylabel(label, fontsize=SMALL, color=INK)
        key(figure, axes, drawn, scale)
    figure.text(
        _LEFT / width,
        1 - 0.06 / total,
        drawable(title_of(output)),
        fontsize=SMALL + 0.5,
        fontweight="bold",
        color=INK,
        va="top",
        parse_math=False,
    )
    return figure
