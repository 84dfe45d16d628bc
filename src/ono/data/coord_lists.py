"""Coords given as one list each: the axes of a grid, or the coordinates of a cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ono.data.layout import Axes, Meshing, Named, Role, is_likely
from ono.errors import InputError

Layouts: TypeAlias = dict[Named, Axes]
Find: TypeAlias = Callable[[Sequence[Named], Mapping[Role, Axes]], Layouts]


def find_with_lists(
    lists: Sequence[Named], said: Mapping[Role, Axes], mesh: Meshing | None, find: Find
) -> tuple[Sequence[Named], Layouts]:
    """Return the lists as they are, or with the shape of the grid they span, and all layouts.

    `find` is given coords and what was said, and returns the layouts of all arrays. Both readings
    are tried. A cloud of more channels than usual gives way to a grid; else, if both fit, the user
    must say which it is.
    """
    lengths = tuple(array.shape[0] for array in lists)
    readings: list[tuple[Sequence[Named], Mapping[Role, Axes]]] = []
    if mesh != "cloud":
        # Only grid axes are spread, never samples, however well their number fits.
        grid = tuple("xyz"[: len(lists)])
        spoken = said.get("coords", grid)
        axes = spoken if set(spoken) == set(grid) else grid
        spread = [replace(array, shape=lengths) for array in lists]
        readings.append((spread, {**said, "coords": axes}))
    if len(set(lengths)) == 1:
        readings.append((lists, said))
    names = ", ".join(array.label for array in lists)
    complaint = InputError(f"coords {names} of a cloud must have one length, got {list(lengths)}")
    found: list[tuple[Sequence[Named], Layouts]] = []
    for coords, known in readings:
        try:
            found.append((coords, find(coords, known)))
        except InputError as error:
            complaint = error
    if not found:
        raise complaint
    if len(found) > 1 and mesh is None and is_likely(found[1][1]):
        raise InputError(
            f"coords {names} can be the axes of a grid or the coordinates of a cloud; say which: "
            "--mesh grid or --mesh cloud"
        )
    return found[0]
