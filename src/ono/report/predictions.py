"""What an operator makes of its best, median and worst sample, and what it learned to do so."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ono.data.batches import load
from ono.data.info import Array, Channel, Split
from ono.data.view import Batch, View
from ono.data.windows import with_history
from ono.errors import DataError
from ono.evaluate.metrics import relative_l2
from ono.evaluate.operator import Operator
from ono.evaluate.score import score
from ono.models.ono import ONO
from ono.report.fields import Place
from ono.report.figures import Eigenfunctions, Sample
from ono.report.series import Series

_HEADS, _FUNCTIONS = 4, 6
_LOOKED_AT = 32
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Pictures:
    """What the operator did with some samples of a split."""

    split: Split
    inputs: tuple[Channel, ...]
    outputs: tuple[Channel, ...]
    samples: tuple[Sample, ...]
    eigen: Eigenfunctions | None
    series: Series | None = None


@torch.no_grad()
def look(
    operator: Operator,
    view: View,
    split: Split,
    errors: dict[int, float] | None,
    layer: int | None,
) -> Pictures:
    """Predict the best, median and worst sample of a view."""
    dataset = view.dataset
    if operator.card.dataset_sha256 != dataset.sha256:
        raise DataError(
            f"{dataset.path} holds other data than the run was trained on "
            f"({dataset.sha256[:12]} against {operator.card.dataset_sha256[:12]})"
        )
    if errors is None:
        found = score(operator, load(replace(view, rows=view.rows[:_LOOKED_AT]), _CPU))
        errors = dict(zip(found.rows.tolist(), found.errors.tolist(), strict=True))
    samples, eigen, series = [], None, None
    for label, row in extremes({r: e for r, e in errors.items() if r in view.rows}).items():
        batch = view.read(np.array([view.rows.index(row)]))
        place = Place(_array(batch.domain.coords[0]), dataset.info.mesh.kind, batch.domain.shape)
        prediction = operator.answer(batch)
        samples.append(_sample(prediction, batch, label, place))
        if label == "median":
            series = _series(prediction, batch, place)
            if layer is not None:
                eigen = _eigenfunctions(operator, batch, place, layer)
    inputs = dataset.info.inputs
    if view.window is not None:
        inputs = tuple(c.model_copy(update={"name": f"{c.name}, last known"}) for c in view.outputs)
    return Pictures(split, inputs, view.outputs, tuple(samples), eigen, series)


def extremes(errors: dict[int, float]) -> dict[str, int]:
    """Return the rows with the smallest, the middle and the largest error; NaN is the worst.

    >>> extremes({7: 0.3, 8: float("nan"), 9: 0.1})
    {'best': 9, 'median': 7, 'worst': 8}
    """
    rows = sorted(errors, key=lambda row: (errors[row] != errors[row], errors[row]))
    places = {"best": 0, "median": (len(rows) - 1) // 2, "worst": -1}
    return {label: rows[place] for label, place in places.items()} if rows else {}


def _sample(prediction: Tensor, batch: Batch, label: str, place: Place) -> Sample:
    """Return a sample to draw; of a series, its last frame."""
    error = relative_l2(prediction, batch.target, batch.domain.mask)
    last = () if batch.times is None else (-1,)
    given = batch.values[0] if batch.history is None else batch.history[0, -1]
    return Sample(
        label=label,
        row=int(batch.rows[0]),
        error=float(error[0]),
        place=place,
        inputs=_array(given),
        truth=_array(batch.target[(0, *last)]),
        prediction=_array(prediction[(0, *last)]),
    )


def _series(prediction: Tensor, batch: Batch, place: Place) -> Series | None:
    if batch.times is None:
        return None
    return Series(
        row=int(batch.rows[0]),
        place=place,
        times=_array(batch.times),
        truth=_array(batch.target[0]),
        prediction=_array(prediction[0]),
    )


def _eigenfunctions(
    operator: Operator, batch: Batch, place: Place, layer: int
) -> Eigenfunctions | None:
    """Evaluate the eigenfunctions with the largest eigenvalues of the first heads."""
    model, scale = operator.model, operator.normaliser
    if not isinstance(model, ONO):
        return None
    given, time = batch.values, None
    if batch.history is not None:
        given = with_history(given, batch.history)
    elif batch.times is not None:
        time = scale.clock(batch.times[-1:])
    domain, values = scale.place(batch.domain), scale.encode(given)
    found = model.eigenfunctions(domain, values, layer=layer, time=time)
    psi = found[0].permute(1, 2, 0)[:_HEADS]
    mu = list(model.orthogonal_attentions())[layer].mu[:_HEADS]
    largest, order = mu.sort(descending=True, stable=True)
    order = order[:, :_FUNCTIONS]
    return Eigenfunctions(
        layer=layer,
        row=int(batch.rows[0]),
        place=place,
        heads=tuple(range(len(mu))),
        functions=_array(order),
        mu=_array(largest[:, :_FUNCTIONS]),
        fields=_array(torch.take_along_dim(psi, order[..., None], 1)),
    )


def _array(values: Tensor) -> Array:
    return values.detach().cpu().numpy()
