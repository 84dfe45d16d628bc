"""Predictions for a user's own arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ono.data.batches import float_tensor
from ono.data.info import Array
from ono.domain import Domain, trapezoidal
from ono.errors import ShapeError
from ono.evaluate.operator import Operator
from ono.nn.interpolation import is_uniform


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted values, and how many of their points lie outside the box seen in training."""

    values: Array
    outside: int


@torch.no_grad()
def predict(
    operator: Operator,
    inputs: Array | None = None,
    *,
    coords: Array | None = None,
    weights: Array | None = None,
    query: Array | None = None,
    chunk: int = 1 << 16,
    batch: int = 8,
) -> Prediction:
    """Evaluate an operator on arrays and return an array of the same layout.

    `inputs` is [samples points channels], or on a grid [samples nx ny ... (channels)]; without
    `coords` ([points dim] or [samples points dim]) a grid fills the box of the training data. An
    operator whose output depends on the geometry alone needs no inputs; one that was trained with
    quadrature weights needs them too, [points] or [samples points].
    `query` [queries dim] asks for the output elsewhere: [samples queries channels].
    """
    if inputs is None:
        inputs = _no_inputs(operator, coords)
    grid, flat = _as_points(operator, inputs, coords)
    place = _as_coords(operator, coords, grid, flat)
    if grid is None:
        grid = _uniform_grid(operator, place)
    measure = _as_weights(operator, weights, grid, flat)
    if not np.isfinite(flat).all():
        bad = np.flatnonzero(~np.isfinite(flat).all((1, 2)))
        raise ShapeError(f"inputs hold NaN or infinite values in samples {bad[:10].tolist()}")
    device = operator.normaliser.coord_low.device
    wanted = None if query is None else as_queries(operator, query).to(device)
    results = []
    operator.eval()
    for start in range(0, len(flat), batch):
        values = float_tensor(flat[start : start + batch]).to(device)
        here = place[start : start + batch] if len(place) > 1 else place
        domain = Domain(here.to(device).expand(len(values), -1, -1), grid)
        if measure is not None:
            own = measure[start : start + batch] if len(measure) > 1 else measure
            domain = replace(domain, weights=own.to(device).expand(len(values), -1))
        if wanted is None:
            results.append(operator(domain, values).cpu().numpy())
        else:
            where = Domain(wanted.expand(len(values), -1, -1))
            results.append(operator.at(domain, values, where, chunk=chunk).cpu().numpy())
    values_out = np.concatenate(results)
    if query is None and grid is not None and inputs.shape[1 : 1 + len(grid)] == grid:
        values_out = values_out.reshape(len(inputs), *grid, values_out.shape[-1])
        if inputs.ndim == 1 + len(grid) and values_out.shape[-1] == 1:
            values_out = values_out[..., 0]
    return Prediction(values_out, _outside(operator, wanted if query is not None else place))


def _no_inputs(operator: Operator, coords: Array | None) -> Array:
    """Return inputs without channels for each sample of the coordinates."""
    names = ", ".join(channel.name for channel in operator.card.inputs)
    if names or coords is None or coords.ndim not in (2, 3):
        wanted = f"inputs ({names})" if names else "coords as [samples points dim]"
        raise ShapeError(f"this operator needs {wanted}")
    samples = coords.shape[0] if coords.ndim == 3 else 1
    return np.zeros((samples, coords.shape[-2], 0), np.float32)


def _as_points(
    operator: Operator, inputs: Array, coords: Array | None
) -> tuple[tuple[int, ...] | None, Array]:
    dim, channels = operator.card.mesh.dim, len(operator.card.inputs)
    if inputs.dtype.kind not in "fiub":
        raise ShapeError(f"inputs must be numbers, got {inputs.dtype}")
    if inputs.size == 0 and (channels > 0 or 0 in inputs.shape[:-1]):
        raise ShapeError(f"inputs are empty, got {list(inputs.shape)}")
    if operator.card.mesh.kind == "structured" and coords is None:
        raise ShapeError(
            "this operator works on curved meshes: give coords as [samples points dim]"
        )
    if operator.card.mesh.kind == "grid" and coords is None:
        # Points first: in two dimensions [samples points 1] has the rank of a grid of one channel.
        if inputs.ndim == 3 and inputs.shape[-1] == channels:
            for grid in _likely_grids(operator, inputs.shape[1]):
                return grid, inputs
        if inputs.ndim == dim + 1 and channels == 1 and min(inputs.shape[1:]) > 1:
            return inputs.shape[1:], inputs.reshape(len(inputs), -1, 1)
        if inputs.ndim == dim + 2 and inputs.shape[-1] == channels and min(inputs.shape[1:-1]) > 1:
            return inputs.shape[1:-1], inputs.reshape(len(inputs), -1, channels)
    elif inputs.ndim == 3 and inputs.shape[-1] == channels:
        return None, inputs
    names = ", ".join(channel.name for channel in operator.card.inputs)
    layout = "[samples points channels]"
    if operator.card.mesh.kind == "grid" and coords is None:
        layout = f"[samples {' '.join('xyz'[:dim])} channels], or {layout} with coords"
    raise ShapeError(
        f"inputs must be {layout} with {channels} channels ({names}), got {list(inputs.shape)}"
    )


def _likely_grids(operator: Operator, points: int) -> list[tuple[int, ...]]:
    """Return the shapes so many points may have: as in training, or equal sides."""
    dim = operator.card.mesh.dim
    guesses = (operator.card.resolution or (), (round(points ** (1 / dim)),) * dim)
    return [grid for grid in guesses if grid and math.prod(grid) == points]


def _uniform_grid(operator: Operator, place: Tensor) -> tuple[int, ...] | None:
    """Recognise a grid in given coordinates, so that it is integrated like one in training."""
    if operator.card.mesh.kind != "grid":
        return None
    step = operator.normaliser.coord_span.cpu() * 1e-5
    axes = (place[0] / step).round().T
    shape = tuple(len(axis.unique()) for axis in axes)
    if math.prod(shape) != place.shape[1] or not is_uniform(Domain(place, shape)):
        return None
    return shape


def _as_weights(
    operator: Operator, weights: Array | None, grid: tuple[int, ...] | None, flat: Array
) -> Tensor | None:
    """Return the weights of the inner product as in training: given, trapezoidal or equal."""
    mesh = operator.card.mesh
    if weights is None:
        if operator.card.weighted:
            raise ShapeError(
                "this operator was trained with quadrature weights: give weights as [points] or "
                "[samples points]"
            )
        bounded = grid is not None and mesh.kind == "grid" and not mesh.periodic
        return trapezoidal(grid)[None] if bounded and grid is not None else None
    rows = weights if weights.ndim == 2 else weights[None]
    if rows.ndim != 2 or rows.shape[1] != flat.shape[1] or len(rows) not in (1, len(flat)):
        raise ShapeError(
            f"weights must be [{flat.shape[1]}] or [{len(flat)} {flat.shape[1]}] to match the "
            f"inputs, got {list(weights.shape)}"
        )
    if not np.isfinite(rows).all() or (rows < 0).any() or (rows.sum(1) <= 0).any():
        raise ShapeError("weights must be finite, not negative, and positive somewhere")
    return float_tensor(rows / rows.sum(1, keepdims=True))


def _as_coords(
    operator: Operator, coords: Array | None, grid: tuple[int, ...] | None, flat: Array
) -> Tensor:
    if coords is None:
        if grid is None:
            raise ShapeError("this operator works on scattered points: give coords as [points dim]")
        normaliser = operator.normaliser
        unit = Domain.grid(grid).coords
        return unit * normaliser.coord_span.cpu() + normaliser.coord_low.cpu()
    dim = operator.card.mesh.dim
    place = coords if coords.ndim == 3 else coords[None]
    if place.shape[1:] != (flat.shape[1], dim) or len(place) not in (1, len(flat)):
        raise ShapeError(
            f"coords must be [{flat.shape[1]} {dim}] or [{len(flat)} {flat.shape[1]} {dim}] to "
            f"match the inputs, got {list(coords.shape)}"
        )
    if not np.isfinite(place).all():
        raise ShapeError("coords hold NaN or infinite values")
    return float_tensor(place)


def as_queries(operator: Operator, points: Array) -> Tensor:
    """Return query points as a tensor, refusing other ranks and values that are no place."""
    dim = operator.card.mesh.dim
    if points.ndim != 2 or points.shape[1] != dim or len(points) == 0:
        raise ShapeError(f"query points must be [points {dim}], got {list(points.shape)}")
    if not np.isfinite(points).all():
        bad = np.flatnonzero(~np.isfinite(points).all(1))
        raise ShapeError(f"query points hold NaN or infinite values in rows {bad[:10].tolist()}")
    return float_tensor(points)


def _outside(operator: Operator, points: Tensor | None) -> int:
    if points is None:
        return 0
    normaliser = operator.normaliser
    unit = (points.to(normaliser.coord_low) - normaliser.coord_low) / normaliser.coord_span
    slack = 1e-5
    return int(((unit < -slack) | (unit > 1 + slack)).any(-1).sum())


def scattered_points(operator: Operator, count: int, seed: int = 0) -> Tensor:
    """Draw points uniformly in the box of the training data."""
    rng = np.random.default_rng(seed)
    unit = rng.random((count, operator.card.mesh.dim))
    normaliser = operator.normaliser
    return float_tensor(unit) * normaliser.coord_span.cpu() + normaliser.coord_low.cpu()
