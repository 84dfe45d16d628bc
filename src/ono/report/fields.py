"""Draw values at points on the geometry they live on: grid, structured mesh, cloud, or line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator

from ono.data.info import Array, Channel

INK, MUTED, RULE = "#1c2733", "#66727f", "#d9dfe5"
FIRST, SECOND = "#2a5fa5", "#c4611a"
SIGNED, FIELD, ERROR = "RdBu_r", "viridis", "magma"
SMALL = 8.0
"""Points of the letters in a figure that are not headings."""

_SHARP_NODES = 128
_LONG = 4
"""A picture that many times longer than wide is stretched."""
_FAR = 30
"""Cells that are so many times larger than a mesh's small ones are not drawn."""
_LOW = 0.6
"""A picture of fewer inches has room for few numbers beside it."""
_KEY_GAP, _KEY_WIDTH = 0.05, 0.07


@dataclass(frozen=True, slots=True)
class Place:
    """The points of one sample, [points dim], and how they are connected."""

    coords: Array
    kind: Literal["grid", "structured", "cloud"]
    shape: tuple[int, ...] | None = None

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return int(self.coords.shape[1])

    @property
    def aspect(self) -> float:
        """Height over width of the drawing, kept within reason."""
        if self.dim == 1:
            return 0.75
        coords, _, shape = flatten(self, self.coords[:, 0])
        if self.kind == "structured" and shape is not None:
            coords = _focus(np.asarray(coords, np.float64).reshape(*shape, 2))
        width, height = np.ptp(_finite_rows(coords), axis=0)
        return float(np.clip(height / width, 1 / _LONG, 1.6)) if width > 0 and height > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Which colours stand for which values."""

    low: float
    high: float
    colours: str = FIELD

    @classmethod
    def of(cls, *fields: Array, colours: str = FIELD) -> Scale:
        """Return the range of all finite values; a constant gets room on both sides.

        >>> Scale.of(np.array([1.0, np.nan]), np.array([3.0]))
        Scale(low=1.0, high=3.0, colours='viridis')
        """
        values = np.concatenate([np.asarray(field, np.float64).ravel() for field in fields])
        values = values[np.isfinite(values)]
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
        if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
            room = 0.5 * abs(low) or 0.5
            low, high = low - room, high + room
        return cls(low, high, colours)


def flatten(place: Place, values: Array) -> tuple[Array, Array, tuple[int, ...] | None]:
    """Return points of a plane [points 2], their values, and the logical shape if there is one.

    A volume shows its middle slice. A surface or a cloud in space is seen along its shortest
    direction, near points last.
    """
    coords, shape = place.coords, place.shape
    if shape is not None and len(shape) == 3:
        middle = shape[2] // 2
        coords = coords.reshape(*shape, -1)[:, :, middle].reshape(-1, coords.shape[1])[:, :2]
        values, shape = values.reshape(shape)[:, :, middle].ravel(), shape[:2]
    if coords.shape[1] == 2:
        return coords, values, shape if shape is not None and len(shape) == 2 else None
    directions = np.argsort(-np.ptp(_finite_rows(coords), axis=0), kind="stable")
    order = np.argsort(coords[:, directions[2]], kind="stable")
    return coords[order][:, np.sort(directions[:2])], values[order], None


def draw(axes: Axes, place: Place, values: Array, scale: Scale) -> ScalarMappable | None:
    """Draw one channel [points]; return what a colour key needs, or None for a line."""
    values = np.where(np.isfinite(values), values, np.nan).astype(np.float64)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(color=RULE, linewidth=0.6, visible=place.kind != "cloud" or place.dim == 1)
    if place.dim == 1:
        order = np.argsort(place.coords[:, 0], kind="stable")
        axes.plot(place.coords[order, 0], values[order], color=FIRST, linewidth=1.2)
        room = 0.05 * (scale.high - scale.low)
        axes.set_ylim(scale.low - room, scale.high + room)
        return None
    coords, values, shape = flatten(place, values)
    limits: dict[str, Any] = {"cmap": scale.colours, "vmin": scale.low, "vmax": scale.high}
    if shape is None:
        size = float(np.clip(15000 / len(coords), 0.5, 60))
        x, y = coords.T
        drawn: ScalarMappable = axes.scatter(
            x, y, s=size, c=values, linewidths=0, rasterized=True, **limits
        )
    elif place.kind == "grid":
        image, extent = _raster(coords.reshape(*shape, 2), values.reshape(shape))
        sharp = "none" if max(shape) <= _SHARP_NODES else "auto"
        drawn = axes.imshow(image, origin="lower", extent=extent, interpolation=sharp, **limits)
    else:
        x, y = np.moveaxis(np.asarray(coords, np.float64).reshape(*shape, 2), -1, 0)
        cells = values.reshape(shape)
        drawn = axes.pcolormesh(x, y, cells, shading="gouraud", rasterized=True, **limits)
        coords = _focus(np.asarray(coords, np.float64).reshape(*shape, 2))
        low, high = coords.min(0), coords.max(0)
        axes.set_xlim(low[0], high[0])
        axes.set_ylim(low[1], high[1])
    spans = np.ptp(_finite_rows(coords), axis=0)
    long = spans.min() <= 0 or spans.max() / spans.min() > _LONG
    axes.set_aspect("auto" if long else "equal")
    return drawn


def key(figure: Figure, axes: Axes, drawn: ScalarMappable | None, scale: Scale) -> None:
    """Put a colour bar right of a picture, or numbers right of a line."""
    low = axes.get_position().height * figure.get_figheight() < _LOW
    ticks = [
        float(tick)
        for tick in MaxNLocator(2 if low else 4, steps=[1, 2, 5, 10]).tick_values(
            scale.low, scale.high
        )
        if scale.low <= tick <= scale.high
    ]
    labels = short(ticks)
    if drawn is None:
        axes.yaxis.tick_right()
        axes.set_yticks(ticks, labels)
        axes.tick_params(labelsize=SMALL, labelcolor=MUTED, color=RULE, length=2)
        return
    box, width = axes.get_position(), figure.get_figwidth()
    left = box.x1 + _KEY_GAP / width
    beside = figure.add_axes((left, box.y0, _KEY_WIDTH / width, box.height))
    bar = figure.colorbar(drawn, cax=beside)
    bar.set_ticks(ticks, labels=labels)
    bar.outline.set_visible(False)
    if bar.solids is not None:
        bar.solids.set_rasterized(True)
    beside.tick_params(labelsize=SMALL, labelcolor=MUTED, length=0, pad=3)


def short(ticks: Sequence[float]) -> list[str]:
    """Write evenly spaced numbers with just the digits that tell them apart.

    >>> short([-0.005, 0.0, 0.005]), short([0.0, 2e-7]), short([101325.0, 101325.5])
    (['−0.005', '0', '0.005'], ['0', '2e-07'], ['101325.0', '101325.5'])
    """
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    digits = next((d for d in range(9) if math.isclose(round(step, d), step, rel_tol=1e-6)), 9)
    texts = [f"{t:.{digits}f}" for t in ticks]
    if step < 1e-4 or max(map(len, texts), default=0) > 8:
        texts = [f"{t:.3g}" for t in ticks]
    return [
        "0" if t == 0 else x.replace("-", "−", t < 0) for t, x in zip(ticks, texts, strict=True)
    ]


def title_of(channel: Channel) -> str:
    """Name a channel with its unit.

    >>> title_of(Channel(name="pressure", unit="Pa")), title_of(Channel(name="strain"))
    ('pressure [Pa]', 'strain')
    """
    return channel.name if channel.unit == "1" else f"{channel.name} [{channel.unit}]"


def drawable(text: str, longest: int = 32) -> str:
    """Return text the figure's font can draw: unknown letters become boxes, long names end in …

    >>> drawable("pressure"), drawable("a" * 40, longest=4)
    ('pressure', 'aaa…')
    """
    known = _letters()
    text = "".join(letter if ord(letter) in known else "\N{WHITE SQUARE}" for letter in text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


@cache
def _letters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())


def _focus(nodes: Array) -> Array:
    """Return corners of what is worth seeing: all of a mesh, or where its small cells are.

    A mesh that reaches far beyond a body has its smallest cells around the body.
    """
    along = np.linalg.norm(np.diff(nodes, axis=0), axis=-1)[:, :-1]
    across = np.linalg.norm(np.diff(nodes, axis=1), axis=-1)[:-1]
    size = np.maximum(along, across)
    small = float(np.nanquantile(size, 0.25)) if size.size else 0.0
    points = nodes.reshape(-1, 2)
    points = points[np.isfinite(points).all(1)]
    if size.size and np.nanmax(size) > _FAR * small > 0:
        points = nodes[:-1, :-1][size <= small]
        room = 0.1 * np.ptp(points, axis=0)
        return np.stack((points.min(0) - room, points.max(0) + room))
    return points


def _raster(nodes: Array, values: Array) -> tuple[Array, tuple[float, float, float, float]]:
    """Return an image with x along columns, and the outer edges of its cells."""
    along = np.abs(nodes[-1, 0] - nodes[0, 0])
    if along[0] >= along[1]:
        nodes, values = nodes.swapaxes(0, 1), values.T
    edges: list[float] = []
    for line in (nodes[0, :, 0], nodes[:, 0, 1]):
        first, last = float(line[0]), float(line[-1])
        half = (last - first) / (2 * (len(line) - 1)) if len(line) > 1 and last != first else 0.5
        edges += [first - half, last + half]
    return values, (edges[0], edges[1], edges[2], edges[3])


def _finite_rows(coords: Array) -> Array:
    finite: Array = coords[np.isfinite(coords).all(1)]
    return finite if len(finite) else np.zeros((1, coords.shape[1]))
