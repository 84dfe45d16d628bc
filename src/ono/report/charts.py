"""The charts of a report: how training went, how errors spread, how they follow the resolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ono.data.info import Array
from ono.report.fields import FIRST, INK, MUTED, RULE, SECOND, SMALL

WIDTH, DPI = 9.6, 150
"""Inches of the report's column, which charts fill, and pixels an inch where pixels are."""

NARROW = 3.6
"""Inches of the column on a phone."""


@dataclass(frozen=True, slots=True)
class Level:
    """Errors at one number of points; `label` stands below the mark, e.g. "29 × 29"."""

    kind: str
    points: int
    label: str
    mean: float
    median: float
    worst: float


def curves(
    metrics: Sequence[Mapping[str, Any]], chosen: int | None = None, *, width: float = WIDTH
) -> Figure:
    """Draw training loss and validation error per epoch, the learning rate underneath."""
    figure = Figure((width, 4.3), dpi=DPI, layout="constrained", facecolor="white")
    losses, rate = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    epochs = np.array([line["epoch"] for line in metrics], float)
    every = []
    for name, label, colour in (
        ("train", "training loss", FIRST),
        ("validation", "validation error", SECOND),
    ):
        values = np.array([line.get(name, np.nan) for line in metrics], float)
        known = np.isfinite(values) & (values > 0)
        mark = "o" if known.sum() <= 30 else ""
        losses.plot(
            epochs[known], values[known], color=colour, lw=1.5, marker=mark, ms=3.5, label=label
        )
        every.append(values[known])
        at = known & (epochs == chosen)
        if name == "validation" and at.any():
            losses.plot(
                epochs[at], values[at], "o", ms=9, mfc="none", mec=colour, label="chosen checkpoint"
            )
    _log(losses, np.concatenate(every))
    rate.plot(epochs, [line.get("learning_rate", np.nan) for line in metrics], color=MUTED, lw=1.2)
    rate.set_ylim(bottom=0)
    rate.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(losses, "", "relative L2", legend=_legend_columns(width))
    dress(rate, "epoch", "learning\nrate")
    rate.yaxis.set_major_locator(MaxNLocator(2))
    rate.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure


def error_distribution(errors: Sequence[float], *, width: float = WIDTH) -> Figure:
    """Draw the error of every sample in rising order, and how often each size occurs."""
    figure = Figure((width, 3.0), dpi=DPI, layout="constrained", facecolor="white")
    curve, counts = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
    known = np.sort(np.array([e for e in errors if np.isfinite(e) and e > 0], float))
    if known.size:
        share = 100 * (np.arange(known.size) + 0.5) / known.size
        curve.plot(share, known, color=FIRST, lw=1.5, marker="o", ms=2.5 if known.size < 500 else 0)
        mean, median = float(known.mean()), float(np.median(known))
        curve.axhline(mean, color=SECOND, lw=1, ls=(0, (4, 3)), label=f"mean {mean:.4g}")
        curve.plot(50, median, "s", ms=6, mfc="none", mec=INK, label=f"median {median:.4g}")
        wide = known[-1] / known[0] > 20
        ends = (known[0], known[-1] * (1 + 1e-9))
        bins = np.geomspace(*ends, 21) if wide else np.linspace(*ends, 21)
        counts.hist(known, bins=list(bins), orientation="horizontal", color=FIRST, alpha=0.75)
        if wide:
            _log(curve, known)
    dress(
        curve,
        "share of samples, %",
        "relative L2",
        legend=_legend_columns(width) if known.size else 0,
    )
    dress(counts, "samples", "")
    counts.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    return figure


def resolution_figure(
    levels: Sequence[Level], trained: int | None = None, *, width: float = WIDTH
) -> Figure:
    """Draw the error against the number of points, the one of training marked.

    A thin line reaches from the median to the worst sample.
    """
    figure = Figure((width, 3.3), dpi=DPI, layout="constrained", facecolor="white")
    axes = figure.subplots()
    for kind, label, colour, mark in (
        ("grid", "inputs and outputs on a grid", FIRST, "o"),
        ("query", "scattered query points", SECOND, "D"),
    ):
        some = sorted((lv for lv in levels if lv.kind == kind), key=lambda level: level.points)
        if not some:
            continue
        points = [level.points for level in some]
        line = "-" if kind == "grid" else "none"
        axes.vlines(
            points, [lv.median for lv in some], [lv.worst for lv in some], color=colour, alpha=0.4
        )
        means = [level.mean for level in some]
        axes.plot(points, means, color=colour, marker=mark, ms=5, ls=line, lw=1.5, label=label)
    for level in levels:
        if level.kind == "query":
            axes.annotate(
                level.label,
                (level.points, level.mean),
                (7, -3),
                textcoords="offset points",
                fontsize=SMALL,
                color=MUTED,
            )
    if trained is not None:
        axes.axvline(trained, color=MUTED, lw=1, ls=(0, (2, 2)), label="training resolution")
    axes.set_xscale("log")
    named = [lv for lv in levels if lv.kind == "grid"] or levels
    axes.set_xticks([lv.points for lv in named], [lv.label for lv in named])
    axes.set_xticks([], minor=True)
    axes.margins(x=0.1)
    heights = np.array([v for lv in levels for v in (lv.mean, lv.median, lv.worst)], float)
    heights = heights[np.isfinite(heights) & (heights > 0)]
    if heights.size and heights.max() > 20 * heights.min():
        _log(axes, heights)
    else:
        axes.set_ylim(bottom=0)
    dress(axes, "points", "relative L2", legend=_legend_columns(width))
    return figure


def frame_errors(times: Array, errors: Sequence[float], *, width: float = WIDTH) -> Figure:
    """Draw the mean error of each time of a series."""
    figure = Figure((width, 2.4), dpi=DPI, layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.plot(times, errors, color=FIRST, marker="o", ms=4, lw=1.5)
    axes.set_ylim(bottom=0)
    dress(axes, "time", "relative L2")
    return figure


def _log(axes: Axes, values: Array) -> None:
    """Use a logarithmic axis if there is something to show on it."""
    known = values[np.isfinite(values) & (values > 0)]
    if not known.size:
        return
    axes.set_yscale("log")
    near = known.max() < 10 * known.min()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if near else (1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _legend_columns(width: float) -> int:
    return 3 if width > 6 else 1


def dress(axes: Axes, x: str, y: str, *, legend: int = 0) -> None:
    """Give a chart its quiet axes, and a legend above with so many columns."""
    axes.set_xlabel(x, fontsize=SMALL + 1, color=MUTED)
    axes.set_ylabel(y, fontsize=SMALL + 1, color=MUTED)
    axes.tick_params(labelsize=SMALL, labelcolor=MUTED, color=RULE, which="both")
    axes.grid(color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set(visible=side in ("left", "bottom"), color=RULE)
    if legend:
        axes.legend(
            frameon=False,
            fontsize=SMALL + 0.5,
            labelcolor=INK,
            loc="lower left",
            bbox_to_anchor=(-0.01, 1.0),
            ncols=legend,
            borderaxespad=0.2,
        )
