"""Predictions for a user's own arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ono.data.info import Array
from ono.data.view import float_tensor
from ono.domain import Domain
from ono.errors import ShapeError
from ono.evaluate.given import as_queries, as_times, understand
from ono.evaluate.given_points import box
from ono.evaluate.operator import Operator
from ono.evaluate.rollout import roll_out
from ono.evaluate.unfamiliar import distances, tell_far, tell_times


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted fields [samples ... channels].

    `bare` means that what was given had no axis of channels, or without values the outputs that
    were imported. `outside` is how many of the points lie outside the box seen in training,
    `doubts` say what else is unlike training.
    """

    fields: Array
    bare: bool
    outside: int
    doubts: tuple[str, ...] = ()

    @property
    def values(self) -> Array:
        """The fields in the layout of what was given."""
        return self.fields[..., 0] if self.bare and self.fields.shape[-1] == 1 else self.fields


@torch.no_grad()
def predict(
    operator: Operator,
    inputs: Array | None = None,
    *,
    coords: Array | None = None,
    weights: Array | None = None,
    params: Array | None = None,
    query: Array | None = None,
    history: Array | None = None,
    steps: int | None = None,
    times: Array | None = None,
    chunk: int | None = None,
    batch: int = 8,
) -> Prediction:
    """Evaluate an operator on arrays and return an array of the same layout.

    `inputs` is [samples points channels], or on a grid [samples nx ny ... (channels)]; without
    `coords` ([points dim] or [samples points dim]) a grid fills the box of the training data. On a
    grid or a structured mesh both may have its axes in the place of points. One channel, and the
    coordinate of a line, need no axis of their own. An operator whose output depends on the
    geometry alone needs no inputs; one that was trained with quadrature weights needs them too,
    [points] or [samples points], and one that knows numbers of a whole sample needs `params`
    [samples numbers].
    `query` [queries dim] asks for the output elsewhere: [samples queries channels]. `chunk` is how
    many points to take at a time: if not given, 65536 queries on a GPU and 16384 on a CPU, and
    input points only if there are more than a quarter of a million, or 32768.

    An operator for roll-outs takes the known frames as `history` [samples frames ...], laid out
    like inputs, and returns `steps` further ones; a timed one returns the output at `times`. Both
    have an axis for time behind the samples, and by default do what they did in training.
    """
    _refuse_other_tasks(operator, history=history, steps=steps, times=times, query=query)
    given = understand(
        operator, inputs, coords=coords, weights=weights, params=params, history=history
    )
    device = operator.device
    wanted = None if query is None else as_queries(operator, query).to(device)
    clock = as_times(operator, times)
    results, found = [], []
    operator.eval()
    for start in range(0, len(given.values), batch):
        domain, values, known = given.batch(slice(start, start + batch), device)
        found.append(distances(operator, values, known).cpu())
        time = None if clock is None else clock.to(device).expand(len(values), -1)
        if known is not None:
            count = len(operator.card.times) if steps is None else steps
            step = partial(operator.field, chunk=chunk)
            made = roll_out(step, domain, values, known, count)
        elif wanted is None:
            made = operator.field(domain, values, time=time, chunk=chunk)
        else:
            where = Domain(wanted.expand(len(values), -1, -1))
            made = operator.at(domain, values, where, time=time, chunk=chunk)
        results.append(made.cpu().numpy())
    made_all = np.concatenate(results)
    doubts = (*tell_far(operator, torch.cat(found)), *tell_times(operator, times))
    if wanted is not None:
        return Prediction(made_all, False, count_outside(operator, wanted), doubts)
    outside = count_outside(operator, given.place)
    return Prediction(given.like(made_all), given.bare, outside, doubts)


def _refuse_other_tasks(operator: Operator, **given: object) -> None:
    """Refuse what does not belong to the operator's task, and a roll-out without its start."""
    task = operator.card.task
    belongs = {"rollout": {"history", "steps"}, "timed": {"times", "query"}, "steady": {"query"}}
    for name, value in given.items():
        if value is not None and name not in belongs[task]:
            raise ShapeError(f"this operator is for a {task} task and takes no {name}")
    if task == "rollout" and given["history"] is None:
        raise ShapeError(
            f"this operator continues a series: give history as [samples {operator.card.history} "
            "points channels]"
        )


def count_outside(operator: Operator, points: Float[Tensor, "*rows dim"]) -> int:
    """Return how many points lie outside the box of the training data."""
    low, span = box(operator)
    unit = (points.to(low) - low) / span
    slack = 1e-5
    return int(((unit < -slack) | (unit > 1 + slack)).any(-1).sum())


def scattered_points(operator: Operator, count: int, seed: int = 0) -> Tensor:
    """Draw points uniformly in the box of the training data."""
    rng = np.random.default_rng(seed)
    unit = rng.random((count, operator.card.mesh.dim))
    normaliser = operator.normaliser
    return float_tensor(unit) * normaliser.coord_span.cpu() + normaliser.coord_low.cpu()
