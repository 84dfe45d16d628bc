"""Read a user's arrays into a draft of a dataset: which axis is what, where the points lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from ono.data.array_files import parse_source, read_array
from ono.data.coord_lists import find_with_lists
from ono.data.draft import Draft
from ono.data.info import Array, ArrayName, Channel, Scalar, Task
from ono.data.layout import (
    Axes,
    Meshing,
    Named,
    Role,
    arrange,
    find_layouts,
    space,
)
from ono.data.lost_digits import refuse_lost_digits
from ono.data.placement import place_points, single
from ono.data.table import read_table
from ono.errors import InputError

TASKS: tuple[Task, ...] = get_args(Task)
MESHINGS: tuple[Meshing, ...] = get_args(Meshing)


@dataclass(frozen=True, slots=True)
class Request:
    """Which files play which role; each is `file` or `file:key`. `names` are the channels."""

    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    coords: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    times: str | None = None
    weights: str | None = None
    layouts: Mapping[Role, Axes] = field(default_factory=dict)
    names: Mapping[Role, tuple[Channel, ...]] = field(default_factory=dict)
    task: Task | None = None
    mesh: Meshing | None = None
    periodic: bool = False


@dataclass(frozen=True, slots=True)
class _Source:
    text: str
    named: Named
    array: Array
    channels: tuple[str, ...] = ()

    def shaped(self, array: Array) -> _Source:
        return replace(self, array=array, named=replace(self.named, shape=array.shape))

    @property
    def name(self) -> str:
        path, key = parse_source(self.text)
        return path.stem if key is None else key.rsplit("/", 1)[-1]


def read_arrays(request: Request) -> Draft:
    """Read all files, find their axes and order them as the store wants them."""
    times = None if request.times is None else _times(request.times)
    sources, layouts = _understand(request, _read(request), times)
    fields = {role: _join(group, layouts) for role, group in sources.items() if group}
    _refuse_lost_points(sources["coords"], layouts)
    axes = layouts[sources["outputs"][0].named]
    outputs, notes = fields["outputs"], []
    timed, along = "t" in axes, space(axes)
    if timed and times is None:
        times = np.arange(outputs.shape[1], dtype=np.float32)
        notes.append(f"no times were given: frames are numbered 0 to {len(times) - 1}")
    samples, shape = outputs.shape[0], outputs.shape[1 + timed : -1]
    points = place_points(
        fields.get("coords"), shape, along, wanted=request.mesh, periodic=request.periodic
    )
    count = math.prod(shape)
    arrays: dict[ArrayName, Array] = {
        "coords": points.coords,
        "inputs": np.zeros((samples, count, 0), np.float32),
        "outputs": outputs.reshape(*outputs.shape[: 1 + timed], count, -1),
    }
    if "inputs" in fields:
        arrays["inputs"] = fields["inputs"].reshape(samples, count, -1)
    if "params" in fields:
        arrays["params"] = fields["params"]
    if times is not None:
        arrays["times"] = times
    if "weights" in fields:
        own = "b" in layouts[sources["weights"][0].named]
        if not own and not points.mesh.shared:
            fields["weights"] = np.broadcast_to(fields["weights"], (samples, *shape, 1))
            own = True
        arrays["weights"] = fields["weights"].reshape((samples, count) if own else (count,))
    draft = Draft(
        task=_task(request, timed),
        mesh=points.mesh,
        inputs=_channels("inputs", sources, request, fields, layouts),
        outputs=_channels("outputs", sources, request, fields, layouts),
        params=_channels("params", sources, request, fields, layouts),
        samples=samples,
        arrays=arrays,
        settings=_settings(sources, layouts, request),
        notes=(*notes, *points.notes),
    )
    _refuse_nothing_to_learn_from(draft)
    return draft


def parse_channels(text: str) -> tuple[Channel, ...]:
    """Read channel names with optional units.

    >>> parse_channels("pressure [Pa], strain")
    (Channel(name='pressure', unit='Pa'), Channel(name='strain', unit='1'))
    """
    channels = []
    for part in text.split(","):
        name, _, unit = part.strip().partition("[")
        if not name.strip() or (unit and not unit.endswith("]")):
            raise InputError(f"channel names are `name, name [unit]`, got {text!r}")
        channels.append(Channel(name=name.strip(), unit=unit.removesuffix("]").strip() or "1"))
    return tuple(channels)


def _read(request: Request) -> dict[Role, list[_Source]]:
    if not request.outputs:
        raise InputError("there is nothing to predict; name the outputs with --outputs FILE:KEY")
    roles: dict[Role, tuple[str, ...]] = {
        "outputs": request.outputs,
        "inputs": request.inputs,
        "coords": request.coords,
        "params": request.params,
        "weights": () if request.weights is None else (request.weights,),
    }
    sources: dict[Role, list[_Source]] = {role: [] for role in roles}
    for role, texts in roles.items():
        for text in texts:
            path, key = parse_source(text)
            names: Sequence[str] = ()
            if role == "params" and path.suffix.lower() == ".csv":
                names, array = read_table(path)
            else:
                array = read_array(path, key)
            if array.size == 0:
                raise InputError(f"{role} {text} is empty: shape {list(array.shape)}")
            named = Named(role, text, array.shape)
            sources[role].append(_Source(text, named, array, tuple(names)))
    return sources


def _understand(
    request: Request, sources: Mapping[Role, list[_Source]], times: Array | None
) -> tuple[dict[Role, list[_Source]], dict[Named, Axes]]:
    """Find the axes of all arrays; where coords are the axes of a grid, make them its nodes."""
    coords = sources["coords"]
    others = [s.named for role, group in sources.items() if role != "coords" for s in group]

    def find(given: Sequence[Named], said: Mapping[Role, Axes]) -> dict[Named, Axes]:
        return find_layouts(
            [*others, *given],
            said,
            mesh=request.mesh,
            times=None if times is None else len(times),
            channels={role: len(names) for role, names in request.names.items()},
        )

    if len(coords) < 2 or any(source.array.size != max(source.array.shape) for source in coords):
        return dict(sources), find([source.named for source in coords], request.layouts)
    coords = [source.shaped(source.array.ravel()) for source in coords]
    lists = [source.named for source in coords]
    read, layouts = find_with_lists(lists, request.layouts, request.mesh, find)
    if read is not lists:
        nodes = np.meshgrid(*(source.array for source in coords), indexing="ij")
        coords = [source.shaped(node) for source, node in zip(coords, nodes, strict=True)]
    return {**sources, "coords": coords}, layouts


def _times(text: str) -> Array:
    times = np.asarray(read_array(*parse_source(text)), np.float64).squeeze()
    times = times.reshape(1) if times.ndim == 0 else times
    if times.ndim != 1 or not np.isfinite(times).all() or (np.diff(times) <= 0).any():
        raise InputError(f"times {text} must be one list of increasing numbers")
    return times.astype(np.float32)


def _join(group: Sequence[_Source], layouts: Mapping[Named, Axes]) -> Array:
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


def _refuse_lost_points(coords: Sequence[_Source], layouts: Mapping[Named, Axes]) -> None:
    """Refuse points that differ in the files and fall together in single precision."""
    if all(source.array.dtype.itemsize <= 4 for source in coords):
        return
    parts = [arrange(source.array, layouts[source.named]) for source in coords]
    label = ", ".join(source.text for source in coords)
    rows = zip(*parts, strict=True) if "b" in layouts[coords[0].named] else [parts]
    for row in rows:
        single(np.concatenate(row, -1), label)


def _task(request: Request, timed: bool) -> Task:
    usual: Task = "timed" if request.inputs or request.params else "rollout"
    if not timed:
        usual = "steady"
    task = request.task or usual
    if timed and task == "steady":
        raise InputError("a steady task has no time axis; leave out --task or the axis t")
    if not timed and task != "steady":
        raise InputError(f"a {task} task needs a time axis: give --times, or t in the layout")
    return task


def _channels(
    role: Role,
    sources: Mapping[Role, Sequence[_Source]],
    request: Request,
    fields: Mapping[Role, Array],
    layouts: Mapping[Named, Axes],
) -> tuple[Channel, ...]:
    """Name the channels of a role: as asked, or after the keys and files they came from."""
    if role not in fields:
        return ()
    count = fields[role].shape[-1]
    if given := request.names.get(role):
        if len(given) != count:
            raise InputError(f"--names {role} has {len(given)} names for {count} channels")
        return given
    names: list[str] = []
    for source in sources[role]:
        axes = layouts[source.named]
        own = source.array.shape[axes.index("c")] if "c" in axes else 1
        names += source.channels or _numbered(source.name, own)
    if len(set(names)) != len(names):
        raise InputError(
            f"some {role} would have one name ({', '.join(names)}); name them: --names {role}=a,b"
        )
    return tuple(Channel(name=name) for name in names)


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}_{k}" for k in range(count)]


def _settings(
    sources: Mapping[Role, Sequence[_Source]], layouts: Mapping[Named, Axes], request: Request
) -> dict[str, Scalar]:
    """Record which file became what, so that a reader can repeat the import."""
    said: dict[str, Scalar] = {
        role: ", ".join(f"{s.text} [{' '.join(layouts[s.named])}]" for s in group)
        for role, group in sources.items()
        if group
    }
    return said if request.times is None else {**said, "times": request.times}


def _refuse_nothing_to_learn_from(draft: Draft) -> None:
    if draft.task != "rollout" and not draft.inputs and not draft.params and draft.mesh.shared:
        raise InputError(
            "nothing tells the samples apart: give --inputs, --params, or coords of each sample"
        )
