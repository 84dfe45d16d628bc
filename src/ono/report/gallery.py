"""Pictures of stored samples: a line of fields each, or a strip of frames for a series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ono.data.info import Array, Channel
from ono.data.store import Dataset
from ono.report.fields import MUTED, SMALL, Place, Scale, draw, drawable, key, title_of
from ono.report.panels import GAP, KEY_ROOM, axes_at, blank_page, columns, heading
from ono.report.series import chosen_frames

_SHOWN_CHANNELS = 3
_SHOWN_BESIDE_FRAMES = 1
_SHOWN_PARAMS = 2
_LEFT, _TOP, _FOOT = 0.3, 0.35, 0.2


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored sample: inputs [points channels], shown outputs [time points channels]."""

    label: str
    place: Place
    inputs: Array
    outputs: Array


def gallery(dataset: Dataset, rows: Sequence[int], outputs: Sequence[int] | None = None) -> Figure:
    """Draw inputs and outputs of some samples; of the outputs the chosen ones or the first few.

    A steady sample is a line of pictures with a key each. A series has a line for every output
    channel: frames from the first time to the last, in the same colours.
    """
    if outputs is None:
        outputs = range(len(dataset.info.outputs))[:_SHOWN_CHANNELS]
    channels = [dataset.info.outputs[place] for place in outputs]
    samples = [_stored(dataset, row, outputs) for row in rows]
    draw_all = _steady if dataset.times is None else _moving
    figure = draw_all(dataset, samples, channels)
    beside = _SHOWN_CHANNELS if dataset.times is None else _SHOWN_BESIDE_FRAMES
    if told := _left_out(dataset, samples, beside, len(channels)):
        inches = figure.get_figwidth(), figure.get_figheight()
        at = _LEFT / inches[0], 0.4 * _FOOT / inches[1]
        figure.text(*at, drawable(told, 200), fontsize=SMALL, color=MUTED, parse_math=False)
    return figure


def _steady(dataset: Dataset, samples: Sequence[_Stored], outputs: Sequence[Channel]) -> Figure:
    inputs = dataset.info.inputs[:_SHOWN_CHANNELS]
    names = [title_of(channel) for channel in (*inputs, *outputs)]
    lefts, panel = columns([True] * len(names), left=_LEFT)
    height = panel * _tallest(samples)
    tall = _TOP + len(samples) * (height + GAP) + _FOOT
    figure = blank_page(lefts[-1] + panel + KEY_ROOM, tall)
    for line, sample in enumerate(samples):
        top = _TOP + line * (height + GAP)
        fields = [*sample.inputs.T[: len(inputs)], *sample.outputs[0].T]
        for column, field in enumerate(fields):
            axes, scale = axes_at(figure, lefts[column], top, panel, height), Scale.of(field)
            key(figure, axes, draw(axes, sample.place, field, scale), scale)
            if line == 0:
                heading(axes, names[column])
            if column == 0:
                _label(axes, sample.label)
    return figure


def _moving(dataset: Dataset, samples: Sequence[_Stored], outputs: Sequence[Channel]) -> Figure:
    times = dataset.times
    assert times is not None
    inputs = dataset.info.inputs[:_SHOWN_BESIDE_FRAMES]
    frames = chosen_frames(len(times))
    keyed = [*(True for _ in inputs), *(frame == frames[-1] for frame in frames)]
    lefts, panel = columns(keyed, left=_LEFT + (0.25 if inputs else 0.0))
    height = panel * _tallest(samples)
    lines = len(samples) * len(outputs)
    figure = blank_page(lefts[-1] + panel + KEY_ROOM, _TOP + lines * (height + GAP) + _FOOT)
    for line in range(lines):
        sample, channel = samples[line // len(outputs)], line % len(outputs)
        top = _TOP + line * (height + GAP)
        if inputs and channel == 0:
            axes, field = axes_at(figure, lefts[0], top, panel, height), sample.inputs[:, 0]
            scale = Scale.of(field)
            key(figure, axes, draw(axes, sample.place, field, scale), scale)
            _label(axes, sample.label)
            if line == 0:
                heading(axes, title_of(inputs[0]))
        shown = sample.outputs[frames, :, channel]
        scale = Scale.of(shown)
        for column, (frame, field) in enumerate(zip(frames, shown, strict=True), len(inputs)):
            axes = axes_at(figure, lefts[column], top, panel, height)
            drawn = draw(axes, sample.place, field, scale)
            if line == 0:
                heading(axes, f"t = {float(times[frame]):.4g}")
            if column == len(inputs):
                name = title_of(outputs[channel])
                _label(axes, name if inputs else f"{sample.label}: {name}")
        key(figure, axes, drawn, scale)
    return figure


def _left_out(dataset: Dataset, samples: Sequence[_Stored], inputs: int, outputs: int) -> str:
    """Say what a picture does not show: channels, params, all of a volume but one slice."""
    info = dataset.info
    told = [
        f"{most} of {len(channels)} {name}"
        for name, channels, most in (
            ("inputs", info.inputs, inputs),
            ("outputs", info.outputs, outputs),
            ("params", info.params, _SHOWN_PARAMS),
        )
        if len(channels) > most
    ]
    if samples and info.mesh.shape is not None and len(info.mesh.shape) == 3:
        told.append(_slice(samples[0].place, info.mesh.shape))
    return "; ".join(told)


def _slice(place: Place, shape: tuple[int, ...]) -> str:
    """Name the slice of a volume that is drawn, by its place where it is a plane.

    >>> axes = np.meshgrid([0.0, 1], [0.0, 1], [0.0, 2, 4], indexing="ij")
    >>> _slice(Place(np.stack(axes, -1).reshape(-1, 3), "grid", (2, 2, 3)), (2, 2, 3))
    'slice 2 of 3, z = 2'
    """
    middle = shape[2] // 2
    heights = place.coords.reshape(*shape, -1)[:, :, middle, 2]
    flat = np.ptp(heights) <= 1e-5 * max(np.ptp(place.coords[:, 2]), 1e-300)
    return f"slice {middle + 1} of {shape[2]}" + (f", z = {heights[0, 0]:.4g}" if flat else "")


def _stored(dataset: Dataset, row: int, shown: Sequence[int]) -> _Stored:
    mesh, moving = dataset.info.mesh, dataset.times is not None
    coords, inputs = dataset.of_sample("coords", row), dataset.of_sample("inputs", row)
    outputs = dataset.of_sample("outputs", row)
    if dataset.offsets is not None and moving:
        outputs = outputs.swapaxes(0, 1)
    outputs = (outputs if moving else outputs[None])[..., list(shown)]
    numbers = () if dataset.params is None else dataset.params[row][:_SHOWN_PARAMS]
    params = zip(dataset.info.params, numbers, strict=False)
    told = "".join(f", {channel.name} {float(number):.3g}" for channel, number in params)
    return _Stored(f"row {row}{told}", Place(coords, mesh.kind, mesh.shape), inputs, outputs)


def _tallest(samples: Sequence[_Stored]) -> float:
    return max((sample.place.aspect for sample in samples), default=1.0)


def _label(axes: Axes, text: str) -> None:
    axes.set_ylabel(drawable(text), fontsize=SMALL, color=MUTED, parse_math=False)
