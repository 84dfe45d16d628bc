"""Grids of three axes of which one is short: it may be channels or time instead."""

from __future__ import annotations

from collections.abc import Mapping

from ono.data.layout import MOST_CHANNELS, Axes, Meshing, Named, Role, agreeing, space, which
from ono.errors import InputError

_THIN = 2 / 3
"""How long a thin axis is at most, of the shorter of the other two."""


def refuse_thin_grids(
    layouts: Mapping[Named, Axes],
    said: Mapping[Role, Axes],
    *,
    mesh: Meshing | None = None,
    times: int | None = None,
    channels: Mapping[Role, int] | None = None,
) -> None:
    """Ask which axis is what where a grid [x y z] is thin and nothing says that it is one.

    Coords, weights, a layout of the fields and a kind of mesh say so. Outputs alone need time to
    tell their samples apart, and that is asked for where it lacks.
    """
    roles = {array.role for array in layouts}
    told = {"coords", "weights"} & roles or {"inputs", "outputs"} & said.keys()
    if told or mesh is not None or roles == {"outputs"}:
        return
    kinds = {(array.role, array.shape): array for array in reversed(list(layouts))}
    arrays = {array: layouts[array] for array in kinds.values()}
    thin = next((axis for array in arrays if (axis := thin_axis(array, arrays[array]))), None)
    if thin is None:
        return
    known = channels or {}
    choices = {
        array: [axes, *_others(array, axes, thin, known.get(array.role, max(array.shape)))]
        for array, axes in arrays.items()
    }
    readings = list(agreeing(choices, {} if times is None else {"t": times}))
    if len(readings) > 1:
        raise InputError(which(readings, times))


def thin_axis(array: Named, axes: Axes) -> str | None:
    """Return which of three axes of a grid may be no space: a short first or a short last one.

    >>> thin_axis(Named("outputs", "u", (30, 2, 12, 16)), ("b", "x", "y", "z"))
    'x'
    >>> thin_axis(Named("outputs", "u", (30, 16, 16, 10)), ("b", "x", "y", "z"))
    'z'
    """
    if len(space(axes)) != 3:
        return None
    first, middle, last = (array.shape[axes.index(letter)] for letter in "xyz")
    if first <= MOST_CHANNELS or first <= _THIN * min(middle, last):
        return "x"
    return "z" if last <= _THIN * min(first, middle) else None


def _others(array: Named, axes: Axes, thin: str, most: int) -> list[Axes]:
    """Return the layouts in which the thin axis is channels, `most` of them, or time of outputs."""
    if thin not in axes:
        return []
    new = ["c"] if "c" not in axes and array.shape[axes.index(thin)] <= most else []
    new += ["t"] if array.role == "outputs" and "t" not in axes else []
    plane = str.maketrans("yz", "xy") if thin == "x" else {}
    return [tuple("".join(axes).replace(thin, letter).translate(plane)) for letter in new]
