"""One sample at several resolutions or times: truth, prediction and error under each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from matplotlib.figure import Figure

from ono.data.info import Array, Channel
from ono.report.charts import WIDTH
from ono.report.fields import (
    ERROR,
    FIRST,
    INK,
    MUTED,
    SECOND,
    SMALL,
    Place,
    Scale,
    draw,
    drawable,
    key,
    title_of,
)
from ono.report.panels import KEY_ROOM, axes_at, blank_page

_LEFT, _TOP, _GAP = 0.3, 0.78, 0.07
_LARGEST = 1.9


@runtime_checkable
class Frame(Protocol):
    """Truth and error of a field [nodes nodes] at one resolution or time."""

    @property
    def title(self) -> str:
        """Which resolution or time."""

    @property
    def group(self) -> str:
        """Whether it was trained on."""

    @property
    def relative_error(self) -> float:
        """The relative L2 error of all nodes, also those that are not drawn."""

    @property
    def truth(self) -> Array:
        """The true field."""

    @property
    def error(self) -> Array:
        """The predicted field less the true one."""


@runtime_checkable
class Strip(Protocol):
    """What an operator made of one sample."""

    @property
    def name(self) -> str:
        """Which operator on which benchmark."""

    @property
    def quantity(self) -> str:
        """What is drawn."""

    @property
    def unit(self) -> str:
        """Its unit."""

    @property
    def row(self) -> int:
        """Which sample of the data."""

    @property
    def frames(self) -> Sequence[Frame]:
        """From left to right."""


def strip_figure(strip: Strip) -> Figure:
    """Draw a column for each frame; all truths and predictions share their colours."""
    truths = [np.asarray(frame.truth, np.float64) for frame in strip.frames]
    errors = [np.asarray(frame.error, np.float64) for frame in strip.frames]
    predictions = [truth + error for truth, error in zip(truths, errors, strict=True)]
    sizes = [np.abs(error) for error in errors]
    same, worst = Scale.of(*truths, *predictions), Scale(0.0, Scale.of(*sizes).high, ERROR)
    count = len(strip.frames)
    panel = min(_LARGEST, (WIDTH - _LEFT - KEY_ROOM) / count - _GAP)
    figure = blank_page(_LEFT + count * (panel + _GAP) + KEY_ROOM, _TOP + 3 * (panel + _GAP))
    lines = (("truth", truths, same), ("prediction", predictions, same), ("|error|", sizes, worst))
    for line, (label, fields, scale) in enumerate(lines):
        for column, (frame, field) in enumerate(zip(strip.frames, fields, strict=True)):
            left, top = _LEFT + column * (panel + _GAP), _TOP + line * (panel + _GAP)
            axes = axes_at(figure, left, top, panel, panel)
            drawn = draw(axes, _square(field.shape), field.ravel(), scale)
            if line == 0:
                told = f"{frame.title}\nerror {frame.relative_error:.4f}"
                axes.set_title(told, fontsize=SMALL, color=INK, pad=3)
            if column == 0:
                axes.set_ylabel(label, fontsize=SMALL, color=MUTED)
        key(figure, axes, drawn, scale)
    _groups(figure, strip.frames, panel)
    return figure


def describe(strip: Strip) -> str:
    """Say in a sentence what a strip shows."""
    shown = drawable(title_of(Channel(name=strip.quantity, unit=strip.unit)), 60)
    return (
        f"{strip.name}, {shown}, row {strip.row}: the test sample with the median error. The error "
        "above each column is relative L2 over all its nodes."
    )


def _groups(figure: Figure, frames: Sequence[Frame], panel: float) -> None:
    """Write over the columns which were trained on, with a line as long as they are."""
    width, height = figure.get_figwidth(), figure.get_figheight()
    for name in dict.fromkeys(frame.group for frame in frames):
        places = [column for column, frame in enumerate(frames) if frame.group == name]
        left = _LEFT + places[0] * (panel + _GAP)
        right = _LEFT + places[-1] * (panel + _GAP) + panel
        colour = FIRST if places[0] == 0 else SECOND
        axes = axes_at(figure, left, 0.24, right - left, 0.02)
        axes.axis("off")
        axes.axhline(0.5, color=colour, linewidth=1.5)
        figure.text(
            left / width,
            1 - 0.2 / height,
            name,
            fontsize=SMALL,
            fontweight="bold",
            color=colour,
            parse_math=False,
        )


def _square(shape: tuple[int, ...]) -> Place:
    axes = np.meshgrid(*(np.linspace(0, 1, nodes) for nodes in shape), indexing="ij")
    return Place(np.stack(axes, -1).reshape(-1, len(shape)), "grid", shape)
