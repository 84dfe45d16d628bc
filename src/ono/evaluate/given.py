"""What a user gives to a prediction, as tensors: values, frames, times, and where they lie.

Every mistake in it becomes a ShapeError that says what was expected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ono.data.info import Array, Channel
from ono.data.view import float_tensor
from ono.domain import Domain
from ono.errors import ShapeError
from ono.evaluate.given_points import as_coords, as_weights, flat_coords, mesh_shape
from ono.evaluate.operator import Operator


@dataclass(frozen=True, slots=True)
class Given:
    """Inputs [samples points channels] or frames [samples time points channels], and where.

    `place` and `weights` have one row for each sample, or one for all. `layout` is the shape of
    the array that predictions are to look like, `lead` the number of its axes before the points.
    """

    values: Array
    frames: Array | None
    place: Tensor
    weights: Tensor | None
    grid: tuple[int, ...] | None
    periodic: bool
    layout: tuple[int, ...]
    lead: int

    def batch(self, part: slice, device: torch.device) -> tuple[Domain, Tensor, Tensor | None]:
        """Return domain, values and known frames of some samples."""
        values = float_tensor(self.values[part]).to(device)

        def rows(x: Tensor) -> Tensor:
            own = x[part] if len(x) > 1 else x
            return own.to(device).expand(len(values), *x.shape[1:])

        weights = None if self.weights is None else rows(self.weights)
        frames = None if self.frames is None else float_tensor(self.frames[part]).to(device)
        domain = Domain(rows(self.place), self.grid, weights, periodic=self.periodic)
        return domain, values, frames

    @property
    def bare(self) -> bool:
        """Whether values came as a grid or a list of points without an axis of channels."""
        return self.layout[self.lead :] in (self.grid, self.values.shape[1:2])

    def like(self, made: Array) -> Array:
        """Return predictions as a grid if that was given."""
        grid = self.grid
        if grid is None or self.layout[self.lead : self.lead + len(grid)] != grid:
            return made
        return made.reshape(*made.shape[:-2], *grid, made.shape[-1])


def understand(
    operator: Operator,
    inputs: Array | None,
    *,
    coords: Array | None,
    weights: Array | None,
    params: Array | None,
    history: Array | None,
) -> Given:
    """Find out what the arrays are: points or a grid, and whether they fit the operator."""
    frames: Array | None = None
    first = inputs if history is None else history[:, 0] if history.ndim > 2 else None
    coords, mesh = flat_coords(operator, coords, first)
    if history is not None:
        layout, lead = history.shape, 2
        grid, frames = _as_frames(operator, history, coords)
        values = np.zeros((len(frames), frames.shape[2], 0), np.float32)
        if inputs is not None or operator.card.inputs:
            given = _no_inputs(operator, coords, params) if inputs is None else inputs
            _, values = _as_points(operator, given, coords)
        if values.shape[:2] != (len(frames), frames.shape[2]):
            raise ShapeError(
                "inputs and history must have the same samples and points, got "
                f"{list(values.shape)} and {list(frames.shape)}"
            )
    else:
        if inputs is None:
            inputs = _no_inputs(operator, coords, params)
            inputs = inputs if mesh is None else inputs.reshape(len(inputs), *mesh, 0)
            layout = inputs.shape[:-1] if operator.card.bare else inputs.shape
        else:
            layout = inputs.shape
        lead = 1
        grid, values = _as_points(operator, inputs, coords)
    values = _with_params(operator, values, params)
    for name, array in (("inputs", values), ("history", frames)):
        if array is not None and not np.isfinite(array).all():
            bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))
            raise ShapeError(f"{name} hold NaN or infinite values in samples {bad[:10].tolist()}")
        if array is not None and np.abs(array).max(initial=0) > np.finfo(np.float32).max:
            raise ShapeError(f"{name} hold values too large for float32; scale them")
    if grid is not None and mesh is not None and grid != mesh:
        raise ShapeError(f"values lie on a mesh of shape {grid}, coords on one of shape {mesh}")
    place = as_coords(operator, coords, grid, values)
    if operator.card.mesh.kind == "grid" and coords is not None:
        found = mesh_shape(operator, place)
        if (axes := grid or mesh) is not None and axes != found:
            raise ShapeError(
                f"coords of shape {list(axes)} are no uniform ascending grid as in training; give "
                "values and coords as lists of points"
            )
        grid = found
    grid = grid or mesh or mesh_shape(operator, place)
    measure = as_weights(operator, weights, grid, values)
    periodic = grid is not None and operator.card.mesh.periodic
    return Given(values, frames, place, measure, grid, periodic, layout, lead)


def _no_inputs(operator: Operator, coords: Array | None, params: Array | None) -> Array:
    """Return inputs without channels, a sample for each of the coordinates or parameters."""
    card = operator.card
    if names := ", ".join(channel.name for channel in card.inputs):
        raise ShapeError(f"this operator needs inputs ({names})")
    grid = card.resolution if card.mesh.kind == "grid" else None
    if coords is None and (grid is None or params is None):
        raise ShapeError("this operator needs coords as [samples points dim]")
    if coords is not None and coords.ndim not in (2, 3):
        raise ShapeError(f"coords must be [points dim] or [samples points dim], got {coords.shape}")
    if coords is None:
        assert params is not None
        assert grid is not None
        return np.zeros((len(params), *grid, 0), np.float32)
    samples = coords.shape[0] if coords.ndim == 3 else 1
    if coords.ndim == 2 and params is not None:
        samples = len(params)
    return np.zeros((samples, coords.shape[-2], 0), np.float32)


def _with_params(operator: Operator, values: Array, params: Array | None) -> Array:
    """Append the numbers of each sample to its inputs, the same at every point."""
    names = ", ".join(channel.name for channel in operator.card.params)
    count = len(operator.card.params)
    if params is None and count == 0:
        return values
    if params is None or params.shape != (len(values), count):
        got = "none" if params is None else str(list(params.shape))
        raise ShapeError(
            f"params must be [{len(values)} {count}] (samples; {names or 'no parameters'}), "
            f"got {got}"
        )
    if params.dtype.kind not in "fiub" or not np.isfinite(params).all():
        raise ShapeError("params must be finite numbers")
    told = np.broadcast_to(params[:, None], (*values.shape[:2], count))
    return np.concatenate((values, told), -1)


def _as_frames(
    operator: Operator, history: Array, coords: Array | None
) -> tuple[tuple[int, ...] | None, Array]:
    """Return known frames as [samples frames points channels], and the grid they lie on."""
    known = operator.card.history
    if history.ndim < 3 or history.shape[1] != known:
        raise ShapeError(
            f"history must be [samples {known} ...], {known} frames as in training, got "
            f"{list(history.shape)}"
        )
    merged = history.reshape(-1, *history.shape[2:])
    grid, flat = _as_points(operator, merged, coords, operator.card.outputs, "history frames")
    return grid, flat.reshape(*history.shape[:2], *flat.shape[1:])


def _as_points(
    operator: Operator,
    inputs: Array,
    coords: Array | None,
    named: tuple[Channel, ...] | None = None,
    what: str = "inputs",
) -> tuple[tuple[int, ...] | None, Array]:
    named, mesh = operator.card.inputs if named is None else named, operator.card.mesh
    dim, channels = mesh.dim, len(named)
    if inputs.dtype.kind not in "fiub":
        raise ShapeError(f"{what} must be numbers, got {inputs.dtype}")
    if inputs.size == 0 and (channels > 0 or 0 in inputs.shape[:-1]):
        raise ShapeError(f"{what} are empty, got {list(inputs.shape)}")
    if mesh.kind == "structured" and coords is None:
        raise ShapeError(
            "this operator works on curved meshes: give coords as [samples points dim]"
        )
    if mesh.kind == "grid" and coords is None:
        # Points first: in two dimensions [samples points 1] has the rank of a grid of one channel.
        if inputs.ndim == 3 and inputs.shape[-1] == channels:
            for grid in _likely_grids(operator, inputs.shape[1]):
                return grid, inputs
        if inputs.ndim == dim + 1 and channels == 1 and min(inputs.shape[1:]) > 1:
            return inputs.shape[1:], inputs.reshape(len(inputs), -1, 1)
        if inputs.ndim == dim + 2 and inputs.shape[-1] == channels and min(inputs.shape[1:-1]) > 1:
            grid = inputs.shape[1:-1]
            return grid, inputs.reshape(len(inputs), math.prod(grid), channels)
    else:
        if inputs.ndim == 3 and inputs.shape[-1] == channels:
            return None, inputs
        axes = len(mesh.shape or ())
        if coords is not None and (mesh.kind == "structured" or axes > 1):
            grid, last = inputs.shape[1 : axes + 1], inputs.shape[axes + 1 :]
            whole = len(grid) == axes and math.prod(grid) == coords.shape[-2]
            if whole and (last == (channels,) or (channels == 1 and last == ())):
                return grid, inputs.reshape(len(inputs), math.prod(grid), channels)
        if inputs.ndim == 2 and channels == 1:
            return None, inputs[..., None]
    names = ", ".join(channel.name for channel in named)
    layout = "[samples points channels]"
    if mesh.kind == "grid":
        on_grid = f"[samples {' '.join('xyz'[:dim])} channels]"
        layout = f"{on_grid} or, if coords are given, {layout},"
    elif mesh.shape is not None and mesh.kind == "structured":
        layout += f" or [samples {' '.join('ijk'[: len(mesh.shape)])} channels],"
    raise ShapeError(
        f"{what} must be {layout} with {channels} channels ({names}), got {list(inputs.shape)}"
    )


def _likely_grids(operator: Operator, points: int) -> list[tuple[int, ...]]:
    """Return the shapes so many points may have: as in training, or equal sides."""
    dim = operator.card.mesh.dim
    guesses = (operator.card.resolution or (), (round(points ** (1 / dim)),) * dim)
    return [grid for grid in guesses if grid and math.prod(grid) == points]


def as_queries(operator: Operator, points: Array) -> Tensor:
    """Return query points as a tensor, refusing other ranks and values that are no place."""
    dim = operator.card.mesh.dim
    if points.ndim != 2 or points.shape[1] != dim or len(points) == 0:
        raise ShapeError(f"query points must be [points {dim}], got {list(points.shape)}")
    if not np.isfinite(points).all():
        bad = np.flatnonzero(~np.isfinite(points).all(1))
        raise ShapeError(f"query points hold NaN or infinite values in rows {bad[:10].tolist()}")
    return float_tensor(points)


def as_times(operator: Operator, times: Array | None) -> Tensor | None:
    """Return the times to predict at: the given ones, or those of training."""
    if operator.card.task != "timed":
        return None
    if times is None:
        return torch.tensor(operator.card.times)
    if times.ndim != 1 or len(times) == 0 or not np.isfinite(times).all():
        raise ShapeError(f"times must be finite numbers [time], got {list(times.shape)}")
    return float_tensor(times)
