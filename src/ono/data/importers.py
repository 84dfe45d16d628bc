"""Read a user's arrays into a draft of a dataset: which axis is what, where the points lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from ono.data.array_files import parse_source, read_array
from ono.data.array_roles import Source, find_axes, join, read_roles
from ono.data.draft import Draft
from ono.data.info import Array, ArrayName, Channel, Scalar, Task
from ono.data.layout import (
    Axes,
    Meshing,
    Named,
    Role,
    arrange,
    space,
)
from ono.data.lost_digits import single_times
from ono.data.placement import place_points, single
from ono.data.thin_grids import thin_axis
from ono.data.told_layouts import tell
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


def read_arrays(request: Request) -> Draft:
    """Read all files, find their axes and order them as the store wants them."""
    times = None if request.times is None else _times(request.times)
    sources, layouts = find_axes(
        read_roles(_files(request)),
        request.layouts,
        mesh=request.mesh,
        times=None if times is None else len(times),
        channels={role: len(names) for role, names in request.names.items()},
    )
    fields = {role: join(group, layouts) for role, group in sources.items() if group}
    _refuse_lost_points(sources["coords"], layouts)
    named = sources["outputs"][0].named
    axes = layouts[named]
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
    said = "outputs" in request.layouts
    _refuse_nothing_to_learn_from(
        draft, None if said else _with_time(named, axes, placed="coords" in fields)
    )
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


def _files(request: Request) -> dict[Role, tuple[str, ...]]:
    """Return the files of every role; there must be outputs."""
    if not request.outputs:
        raise InputError("there is nothing to predict; name the outputs with --outputs FILE:KEY")
    return {
        "outputs": request.outputs,
        "inputs": request.inputs,
        "coords": request.coords,
        "params": request.params,
        "weights": () if request.weights is None else (request.weights,),
    }


def _times(text: str) -> Array:
    times = np.asarray(read_array(*parse_source(text)), np.float64).squeeze()
    times = times.reshape(1) if times.ndim == 0 else times
    if times.ndim != 1 or not np.isfinite(times).all() or (np.diff(times) <= 0).any():
        raise InputError(f"times {text} must be one list of increasing numbers")
    return single_times(times, f"times {text}")


def _refuse_lost_points(coords: Sequence[Source], layouts: Mapping[Named, Axes]) -> None:
    """Refuse points that differ in the files and fall together in single precision."""
    if all(np.can_cast(source.array.dtype, np.float32, "safe") for source in coords):
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
    sources: Mapping[Role, Sequence[Source]],
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
    sources: Mapping[Role, Sequence[Source]], layouts: Mapping[Named, Axes], request: Request
) -> dict[str, Scalar]:
    """Record which file became what, so that a reader can repeat the import."""
    said: dict[str, Scalar] = {
        role: tell((source.text, layouts[source.named]) for source in group)
        for role, group in sources.items()
        if group
    }
    return said if request.times is None else {**said, "times": request.times}


def _with_time(array: Named, axes: Axes, *, placed: bool) -> Axes | None:
    """Return how the axes might be read with time among them, where the points may be `placed`.

    >>> u = Named("outputs", "u", (30, 16, 16, 10))
    >>> _with_time(u, ("b", "x", "y", "z"), placed=False), _with_time(u, ("b", "p"), placed=False)
    (('b', 'x', 'y', 't'), None)
    """
    along = space(axes)
    if not placed and "t" not in axes and len(along) > 1:
        plane, rest = along[:-1], axes[1 + len(along) :]
        last = thin_axis(array, axes) == "z"
        return ("b", *plane, "t", *rest) if last else ("b", "t", *plane, *rest)
    if "t" not in axes and "c" in axes:
        return (*axes[:-1], "t")
    return None


def _refuse_nothing_to_learn_from(draft: Draft, timed: Axes | None) -> None:
    if draft.task == "rollout" or draft.inputs or draft.params or not draft.mesh.shared:
        return
    way_out = "give --inputs, --params, or coords of each sample"
    if timed is not None:
        layout = f'--layout outputs="{" ".join(timed)}"'
        way_out += f"; if an axis is time, say which, such as {layout}, or give --times"
    raise InputError(
        "nothing tells the samples apart: the outputs were read as "
        f"{draft.settings['outputs']}; {way_out}"
    )
