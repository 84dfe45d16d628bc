"""Where a user's values lie, as tensors: coordinates, the mesh they make, weights."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ono.data.info import Array
from ono.data.view import float_tensor
from ono.domain import Domain, trapezoidal
from ono.errors import ShapeError
from ono.evaluate.operator import Operator
from ono.nn.interpolation import is_uniform


def flat_coords(
    operator: Operator, coords: Array | None, values: Array | None
) -> tuple[Array | None, tuple[int, ...] | None]:
    """Return coords of a mesh as a list of points, and the shape they came in, if any.

    On a line the coordinates may come without an axis of their own, [points] or [samples points].
    """
    mesh = operator.card.mesh
    if coords is None:
        return None, None
    bare = coords.ndim == 1 or (values is not None and coords.shape == values.shape[:2])
    if mesh.dim == 1 and bare:
        return coords[..., None], None
    if coords.ndim < 2:
        raise ShapeError(f"coords must be [points {mesh.dim}], got {list(coords.shape)}")
    if mesh.shape is None or len(mesh.shape) == 1:
        return coords, None
    axes = len(mesh.shape)
    if coords.ndim == axes + 2:
        shape = coords.shape[1:-1]
        return coords.reshape(len(coords), math.prod(shape), -1), shape
    if coords.ndim == axes + 1:
        shape = coords.shape[:-1]
        # [nx ny dim] has the rank of [samples points dim].
        alike = values is not None and values.shape[1 : axes + 1] == shape
        known = shape == operator.card.resolution and (mesh.kind == "structured" or values is None)
        if axes > 2 or alike or known or _is_list_of(values, shape):
            return coords.reshape(math.prod(shape), -1), shape
    return coords, None


def _is_list_of(values: Array | None, shape: tuple[int, ...]) -> bool:
    """Whether values [samples points ...] have a point for each node of a mesh."""
    return values is not None and min(shape) > 1 and values.shape[1:2] == (math.prod(shape),)


def as_coords(
    operator: Operator, coords: Array | None, grid: tuple[int, ...] | None, flat: Array
) -> Tensor:
    """Return where the points lie, one row for all samples or each: given, or a grid's nodes."""
    if coords is None:
        if grid is None:
            raise ShapeError("this operator works on scattered points: give coords as [points dim]")
        low, span = box(operator)
        axes = [torch.linspace(0, 1, n + operator.card.mesh.periodic)[:n] for n in grid]
        unit = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(1, -1, len(grid))
        return unit * span.cpu() + low.cpu()
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


def mesh_shape(operator: Operator, place: Tensor) -> tuple[int, ...] | None:
    """Recognise the mesh of given coordinates, so that it is treated like one in training."""
    if operator.card.mesh.kind != "grid":
        shape = operator.card.resolution
        return shape if shape and math.prod(shape) == place.shape[1] else None
    step = operator.normaliser.coord_span.cpu() * 1e-5
    axes = (place[0] / step).round().T
    shape = tuple(len(axis.unique()) for axis in axes)
    if math.prod(shape) != place.shape[1] or not is_uniform(Domain(place, shape)):
        return None
    return shape


def as_weights(
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
    if grid is not None and weights.shape[-len(grid) :] == grid:
        weights = weights.reshape(*weights.shape[: -len(grid)], math.prod(grid))
    rows = weights if weights.ndim == 2 else weights[None]
    if rows.ndim != 2 or rows.shape[1] != flat.shape[1] or len(rows) not in (1, len(flat)):
        raise ShapeError(
            f"weights must be [{flat.shape[1]}] or [{len(flat)} {flat.shape[1]}] to match the "
            f"inputs, got {list(weights.shape)}"
        )
    if not np.isfinite(rows).all() or (rows < 0).any() or (rows.sum(1) <= 0).any():
        raise ShapeError("weights must be finite, not negative, and positive somewhere")
    return float_tensor(rows / rows.sum(1, keepdims=True))


def box(operator: Operator) -> tuple[Tensor, Tensor]:
    """Return where the box of the training data begins, and its size.

    A periodic grid of n nodes fills a box of n steps, although its nodes span only n - 1 of them.
    """
    low, span = operator.normaliser.coord_low, operator.normaliser.coord_span
    if operator.card.mesh.periodic and operator.card.resolution is not None:
        nodes = torch.tensor(operator.card.resolution).to(span)
        span = span * nodes / (nodes - 1).clamp_min(1)
    return low, span
