"""Where pictures stand on a page: columns, pages and axes measured in inches."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ono.report.charts import DPI, WIDTH
from ono.report.fields import INK, SMALL, drawable

GAP, KEY_ROOM = 0.14, 0.72
_LARGEST_PANEL = 2.6


def columns(keyed: Sequence[bool], left: float) -> tuple[list[float], float]:
    """Return where each picture of a line begins and how wide all are, in inches."""
    gaps = [KEY_ROOM if has_key else GAP for has_key in keyed]
    panel = min(_LARGEST_PANEL, (WIDTH - left - sum(gaps)) / len(keyed))
    lefts = [left + column * panel + sum(gaps[:column]) for column in range(len(keyed))]
    return lefts, panel


def blank_page(width: float, height: float) -> Figure:
    """Return an empty white figure."""
    return Figure((width, height), dpi=DPI, facecolor="white")


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes by inches from the upper left corner."""
    w, h = figure.get_figwidth(), figure.get_figheight()
    return figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h))


def heading(axes: Axes, text: str, pad: float = 5.0) -> None:
    """Write a bold title over the left edge of a picture."""
    axes.set_title(
        drawable(text),
        fontsize=SMALL + 0.5,
        fontweight="bold",
        color=INK,
        pad=pad,
        loc="left",
        parse_math=False,
    )
