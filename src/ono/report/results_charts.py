"""The figures of the results page: errors along an axis, and eigenfunctions over the true ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ono.data.info import Array
from ono.report.charts import DPI, WIDTH, dress
from ono.report.fields import FIRST, MUTED, RULE, SECOND, SMALL

COLOURS = (FIRST, SECOND, "#3a8a5c", "#8a4fa3", "#a3763a", "#4f8aa3")
PANELS_A_LINE = 4


@runtime_checkable
class Curve(Protocol):
    """A line: points, their spread over seeds, and whether the paper printed it."""

    @property
    def name(self) -> str:
        """What it is of."""

    @property
    def x(self) -> Sequence[float]:
        """Where its points are."""

    @property
    def y(self) -> Sequence[float]:
        """Their errors."""

    @property
    def spread(self) -> Sequence[float]:
        """The standard deviation of each."""

    @property
    def published(self) -> bool:
        """Whether it is the paper's."""


@runtime_checkable
class Panel(Protocol):
    """A learned function and the true one."""

    @property
    def title(self) -> str:
        """What stands above."""

    @property
    def x(self) -> Array:
        """The points."""

    @property
    def learned(self) -> Array:
        """The learned function at the points."""

    @property
    def true(self) -> Array:
        """The true one."""


def error_curves(curves: Sequence[Curve], axis: str) -> Figure:
    """Draw errors along an axis, both logarithmic: ours as lines, the paper's as open marks."""
    figure = Figure((WIDTH, 3.6), dpi=DPI, layout="constrained", facecolor="white")
    axes = figure.subplots()
    names = list(dict.fromkeys(curve.name for curve in curves))
    for curve in curves:
        colour = COLOURS[names.index(curve.name) % len(COLOURS)]
        label = f"{curve.name}, paper" if curve.published else curve.name
        (line,) = axes.plot(curve.x, curve.y, color=colour, marker="o", ms=5, label=label)
        if curve.published:
            line.set(linestyle=(0, (2, 2)), linewidth=1.0, markerfacecolor="none")
        if any(curve.spread):
            low = [max(y - s, y / 10) for y, s in zip(curve.y, curve.spread, strict=True)]
            high = [y + s for y, s in zip(curve.y, curve.spread, strict=True)]
            band = axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)
            band.set_zorder(0)  # below the grid
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({x for curve in curves for x in curve.x})
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    dress(axes, axis, "relative L2", legend=4)
    return figure


def function_panels(panels: Sequence[Panel]) -> Figure:
    """Draw every learned function over the true one, which is dashed."""
    lines = -(-len(panels) // PANELS_A_LINE)
    figure = Figure((WIDTH, 1.45 * lines), dpi=DPI, layout="constrained", facecolor="white")
    grid = figure.subplots(lines, PANELS_A_LINE, squeeze=False, sharex=True, sharey=True)
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.plot(panel.x, panel.true, color=SECOND, lw=1.2, ls=(0, (4, 2)))
        axes.plot(panel.x, panel.learned, color=FIRST, lw=1.4)
        axes.set_title(panel.title, fontsize=SMALL - 1, color=MUTED, pad=3)
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set(color=RULE)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    return figure
