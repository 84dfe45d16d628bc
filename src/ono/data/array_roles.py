"""A user's arrays in their roles: read from files, their axes found, their channels joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ono.data.array_files import parse_source, read_array
from ono.data.coord_lists import find_with_lists
from ono.data.info import Array
from ono.data.layout import Axes, Meshing, Named, Role, arrange, find_layouts
from ono.data.lost_digits import refuse_lost_digits
from ono.data.table import read_table
from ono.data.thin_grids import refuse_thin_grids
from ono.errors import InputError


@dataclass(frozen=True, slots=True)
class Source:
    """One array of a role, `file` or `file:key`; a table names its `channels`."""

    text: str
    named: Named
    array: Array
    channels: tuple[str, ...] = ()

    def shaped(self, array: Array) -> Source:
        """Return the source with its array in another shape."""
        return replace(self, array=array, named=replace(self.named, shape=array.shape))

    @property
    def name(self) -> str:
        """What to call its channels: the key, or the file."""
        path, key = parse_source(self.text)
        return path.stem if key is None else key.rsplit("/", 1)[-1]


def read_roles(files: Mapping[Role, Sequence[str]]) -> dict[Role, list[Source]]:
    """Read the arrays of every role; refuse those without numbers or axes."""
    sources: dict[Role, list[Source]] = {role: [] for role in files}
    for role, texts in files.items():
        for text in texts:
            path, key = parse_source(text)
            names: Sequence[str] = ()
            if role == "params" and path.suffix.lower() == ".csv":
                table = read_table(path)
                names, array = table.names, table.numbers
            else:
                array = read_array(path, key)
            if array.size == 0:
                raise InputError(f"{role} {text} is empty: shape {list(array.shape)}")
            if array.ndim == 0:
                raise InputError(
                    f"{role} {text} is one number, not an array; name another or leave it out"
                )
            named = Named(role, text, array.shape)
            sources[role].append(Source(text, named, array, tuple(names)))
    return sources


def find_axes(
    sources: Mapping[Role, list[Source]],
    said: Mapping[Role, Axes],
    *,
    mesh: Meshing | None = None,
    times: int | None = None,
    channels: Mapping[Role, int] | None = None,
) -> tuple[dict[Role, list[Source]], dict[Named, Axes]]:
    """Find the axes of all arrays; where coords are the axes of a grid, make them its nodes.

    `times` is how many times are given, `channels` how many each role may have.
    """
    coords = sources.get("coords", [])
    others = [s.named for role, group in sources.items() if role != "coords" for s in group]

    def find(given: Sequence[Named], known: Mapping[Role, Axes]) -> dict[Named, Axes]:
        return find_layouts([*others, *given], known, mesh=mesh, times=times, channels=channels)

    if len(coords) < 2 or any(source.array.size != max(source.array.shape) for source in coords):
        layouts = find([source.named for source in coords], said)
        refuse_thin_grids(layouts, said, mesh=mesh, times=times, channels=channels)
        return dict(sources), layouts
    coords = [source.shaped(source.array.ravel()) for source in coords]
    lists = [source.named for source in coords]
    read, layouts = find_with_lists(lists, said, mesh, find)
    if read is not lists:
        nodes = np.meshgrid(*(source.array for source in coords), indexing="ij")
        coords = [source.shaped(node) for source, node in zip(coords, nodes, strict=True)]
    return {**sources, "coords": coords}, layouts


def join(group: Sequence[Source], layouts: Mapping[Named, Axes]) -> Array:
    """Order the axes of the files of one role and put their channels side by side."""
    parts = [arrange(source.array, layouts[source.named]) for source in group]
    shapes = {part.shape[:-1] for part in parts}
    if len(shapes) > 1:
        listed = "; ".join(str(source.named) for source in group)
        raise InputError(f"files of one role must agree in all axes but channels: {listed}")
    joined = np.empty((*parts[0].shape[:-1], sum(part.shape[-1] for part in parts)), np.float32)
    at = 0
    for source, part in zip(group, parts, strict=True):
        stop = at + part.shape[-1]
        with np.errstate(over="ignore"):
            joined[..., at:stop] = part
        refuse_lost_digits(part, joined[..., at:stop], source.text)
        at = stop
    return joined
