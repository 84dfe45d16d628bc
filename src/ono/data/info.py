"""What a dataset says about itself, and the shapes its arrays must have.

Arrays are little-endian. With the same number of points in every sample:

    coords [points dim] if the mesh is shared, else [samples points dim]
    inputs [samples points channels]        params [samples channels], known to the model
    draws [samples numbers], what a maker drew and the model does not see
    outputs [samples points channels], or [samples time points channels] with times [time]
    weights [points] or [samples points]

Where the geometry alone decides the output, `inputs` has no channels. A ragged cloud has `offsets`
[samples+1]; the points of all samples then lie end to end in coords, inputs, weights [total ...]
and outputs [total channels] or [total time channels].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

FORMAT = 1

Array: TypeAlias = NDArray[Any]
ArrayName = Literal["coords", "inputs", "outputs", "params", "draws", "times", "weights", "offsets"]
Split = Literal["train", "validation", "test"]
Task = Literal["steady", "rollout", "timed"]
Coords = Literal["box", "standard", "spread"]
"""How a network is told coordinates: from 0 to 1, with mean 0 and deviation 1, or by rank."""
Scalar = bool | int | float | str
Finite = Annotated[float, Field(allow_inf_nan=False)]

ARRAYS: tuple[ArrayName, ...] = get_args(ArrayName)
SPLITS: tuple[Split, ...] = get_args(Split)


class Channel(BaseModel, frozen=True, extra="forbid"):
    """One named quantity; the unit is "1" when it has none."""

    name: str = Field(min_length=1)
    unit: str = "1"


class Mesh(BaseModel, frozen=True, extra="forbid"):
    """Where values live: uniform grid, curvilinear structured mesh, or scattered cloud.

    `shape` is the logical shape, first axis slowest; `shared` means one mesh for all samples; on a
    `periodic` grid the last node is followed by the first.
    """

    kind: Literal["grid", "structured", "cloud"]
    dim: int = Field(ge=1)
    shape: tuple[int, ...] | None = None
    shared: bool
    periodic: bool = False

    @model_validator(mode="after")
    def _check(self) -> Mesh:
        if (self.kind == "cloud") != (self.shape is None):
            raise ValueError(f"a {self.kind} mesh got shape {self.shape}; only a cloud has none")
        if self.shape is not None:
            if min(self.shape, default=0) < 1 or len(self.shape) > self.dim:
                raise ValueError(f"shape {self.shape} does not fit {self.dim} coordinates")
            if self.kind == "grid" and len(self.shape) != self.dim:
                raise ValueError(f"a grid of dim {self.dim} got shape {self.shape}")
        return self


class Report(BaseModel, frozen=True, extra="forbid"):
    """What the solver said about each sample; `attempt` counts the redraws before it."""

    converged: list[bool]
    residual: list[Finite]
    iterations: list[int]
    attempt: list[int]


class Provenance(BaseModel, frozen=True, extra="forbid"):
    """Who made the data, from what."""

    maker: str
    size: str = ""
    seed: int | None = None
    note: str = ""
    settings: dict[str, Scalar] = {}
    versions: dict[str, str] = {}


class FileInfo(BaseModel, frozen=True, extra="forbid"):
    """What an array file must be; the dtype is NumPy's, such as "<f4"."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    bytes: int
    shape: tuple[int, ...]
    dtype: str


class Info(BaseModel, frozen=True, extra="forbid"):
    """The content of `dataset.json`. Splits are half-open ranges of rows, disjoint, not empty."""

    format: int = FORMAT
    name: str
    task: Task
    mesh: Mesh
    inputs: tuple[Channel, ...] = ()
    outputs: tuple[Channel, ...] = Field(min_length=1)
    params: tuple[Channel, ...] = ()
    samples: int = Field(ge=1)
    splits: dict[Split, tuple[int, int]]
    provenance: Provenance
    report: Report | None = None
    files: dict[ArrayName, FileInfo] = {}

    @model_validator(mode="after")
    def _check(self) -> Info:
        end = 0
        for name, (start, stop) in sorted(self.splits.items(), key=lambda item: item[1]):
            if not 0 <= start < stop <= self.samples:
                raise ValueError(f"split {name} is [{start}, {stop}) of {self.samples} samples")
            if start < end:
                raise ValueError(f"split {name} [{start}, {stop}) overlaps another")
            end = stop
        for group in (self.inputs, self.outputs, self.params):
            names = [channel.name for channel in group]
            if len(set(names)) != len(names):
                raise ValueError(f"channel names repeat: {names}")
        lengths = {} if self.report is None else {k: len(v) for k, v in self.report}
        if any(length != self.samples for length in lengths.values()):
            raise ValueError(f"report has {lengths} entries for {self.samples} samples")
        return self


def layout_problems(info: Info, arrays: Mapping[ArrayName, Array]) -> list[str]:
    """Say where arrays disagree with `info` or with each other; nothing when they fit."""
    wanted = {"coords", "inputs", "outputs"} | ({"params"} if info.params else set())
    wanted |= set() if info.task == "steady" else {"times"}
    allowed = wanted | {"weights", "draws"}
    if info.mesh.kind == "cloud" and not info.mesh.shared:
        allowed |= {"offsets"}
    problems = [f"{name} is missing" for name in sorted(wanted - set(arrays))]
    problems += [f"{name} does not belong here" for name in sorted(set(arrays) - allowed)]
    if problems:
        return problems
    for name, shapes in _expected_shapes(info, arrays).items():
        array = arrays[name]
        if array.shape not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            problems.append(f"{name} has shape {list(array.shape)}, expected {expected}")
        if array.dtype.kind not in "fiub" or array.dtype.str.startswith(">"):
            problems.append(f"{name} has dtype {array.dtype.str}, expected little-endian floats")
    if info.mesh.kind == "grid" and not problems and not _is_grid(info, arrays["coords"]):
        problems.append(
            "coords are not a uniform ascending grid with the first axis slowest; "
            "call the mesh structured"
        )
    if "offsets" in arrays and not problems:
        offsets = arrays["offsets"]
        if offsets.dtype != np.int64 or offsets[0] != 0 or (np.diff(offsets) < 1).any():
            problems.append("offsets must be int64, start at 0 and increase")
        elif offsets[-1] != len(arrays["coords"]):
            problems.append(f"offsets end at {offsets[-1]}, coords hold {len(arrays['coords'])}")
    return problems


def _is_grid(info: Info, coords: Array) -> bool:
    shape = info.mesh.shape or ()
    nodes = np.asarray(coords if coords.ndim == 2 else coords[0], np.float64)
    low, span = nodes[0], nodes[-1] - nodes[0]
    unit = np.stack(np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij"), -1)
    expected = low + unit.reshape(-1, len(shape)) * span
    slack = 1e-3 * np.abs(span) / np.maximum(shape, 2)
    return bool((span >= 0).all() and (np.abs(nodes - expected) <= slack + 1e-30).all())


def _expected_shapes(
    info: Info, arrays: Mapping[ArrayName, Array]
) -> dict[ArrayName, tuple[tuple[int, ...], ...]]:
    n, coords = info.samples, arrays["coords"].shape
    time = arrays["times"].shape[:1] if "times" in arrays else ()
    if "offsets" in arrays:
        each: tuple[int, ...] = coords[:1]
        outputs = (*each, *time, len(info.outputs))
    else:
        points = math.prod(info.mesh.shape) if info.mesh.shape else (0, *coords)[-2]
        each = (n, points)
        outputs = (n, *time, points, len(info.outputs))
    shapes: dict[ArrayName, tuple[tuple[int, ...], ...]] = {
        "coords": ((*(each[1:] if info.mesh.shared else each), info.mesh.dim),),
        "inputs": ((*each, len(info.inputs)),),
        "outputs": (outputs,),
        "params": ((n, len(info.params)),),
        "draws": ((n, *arrays["draws"].shape[1:2]),) if "draws" in arrays else (),
        "times": (time or (1,),),
        "weights": (each[1:], each) if info.mesh.shared else (each,),
        "offsets": ((n + 1,),),
    }
    return {name: shapes[name] for name in arrays}
