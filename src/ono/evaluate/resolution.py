"""Evaluate an operator where it was not trained: on other grids, and at scattered points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ono.data.batches import in_order, load
from ono.data.task import at_resolution
from ono.data.view import View
from ono.domain import Domain
from ono.errors import DataError, ShapeError
from ono.evaluate.metrics import channel_errors, relative_l2
from ono.evaluate.operator import Operator
from ono.evaluate.score import Score, score
from ono.nn.interpolation import interpolate


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Errors of one kind of evaluation: how it was done, at how many points, and the errors."""

    kind: str
    points: int
    resolution: tuple[int, ...] | None
    score: Score


def on_grid(operator: Operator, view: View, resolution: int | None, batch: int = 8) -> Evaluation:
    """Return the errors with inputs and outputs on a grid of the given resolution."""
    device = operator.device
    finer = at_resolution(view, resolution)
    result = score(operator, load(finer, device), batch)
    return Evaluation("grid", finer.points, finer.shape, result)


@torch.no_grad()
def at_points(
    operator: Operator,
    view: View,
    points: Float[Tensor, "queries dim"],
    *,
    chunk: int = 1 << 16,
    batch: int = 8,
) -> Evaluation:
    """Return the errors at scattered points, with inputs as coarse as in training.

    The truth at a point is interpolated on the finest stored grid, hence exact at its nodes. On
    other meshes nothing reliable is known between the nodes.
    """
    if view.dataset.info.mesh.kind != "grid":
        raise DataError(
            f"{view.dataset.path} is no grid: the truth between its nodes is not known, so errors "
            "there cannot be measured; `ono predict --query` predicts at any points"
        )
    if points.ndim != 2 or points.shape[1] != operator.card.mesh.dim:
        raise ShapeError(
            f"query points must be [points {operator.card.mesh.dim}], got {list(points.shape)}"
        )
    if view.window is not None:
        raise DataError(
            f"{view.dataset.path} is a roll-out, which goes on at the nodes it started from; "
            "evaluate it on grids with --resolution"
        )
    device = operator.device
    operator.eval()
    errors, channels, rows = [], [], []
    fine = load(at_resolution(view, None), device)
    for coarse, truth in zip(
        in_order(load(view, device), batch), in_order(fine, batch), strict=True
    ):
        query = Domain(points.to(device).expand(coarse.domain.batch, -1, -1))
        time = None if coarse.times is None else coarse.times.expand(coarse.domain.batch, -1)
        pred = operator.at(coarse.domain, coarse.values, query, time=time, chunk=chunk)
        true = _at(truth.domain, truth.target, query)
        errors.append(relative_l2(pred, true).cpu())
        channels.append(channel_errors(pred, true).cpu())
        rows.append(coarse.rows)
    return Evaluation(
        "query", len(points), None, Score(torch.cat(errors), torch.cat(channels), torch.cat(rows))
    )


def _at(domain: Domain, fields: Tensor, query: Domain) -> Tensor:
    """Return stored fields between their nodes; times are carried like channels."""
    if fields.ndim == 3:
        return interpolate(domain, fields, query, "linear")
    times = fields.shape[1]
    carried = interpolate(domain, fields.transpose(1, 2).flatten(2), query, "linear")
    parts: Tensor = carried.unflatten(2, (times, -1)).transpose(1, 2)
    return parts
