"""Predictions for whole datasets, as arrays."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from ono.data.array_writer import refuse_unwritable, write_arrays
from ono.data.batches import Streamed, in_order
from ono.data.info import Array, Channel
from ono.data.layout import Role
from ono.data.store import Dataset
from ono.data.task import output_places, window_for
from ono.data.view import View, float_tensor
from ono.device import quick_products
from ono.errors import DataError
from ono.evaluate.operator import Operator
from ono.evaluate.predict import count_outside


def view_for(operator: Operator, dataset: Dataset, split: str) -> View:
    """Return the rows of a split as this operator takes them; refuse data of another kind."""
    card, info = operator.card, dataset.info
    _refuse_other(dataset, "task", card.task, info.task)
    _refuse_other_channels(dataset, "inputs", card.inputs, info.inputs)
    _refuse_other_channels(dataset, "params", card.params, info.params)
    _refuse_other(dataset, "coordinates", str(card.mesh.dim), str(info.mesh.dim))
    _refuse_other(dataset, "quadrature weights", str(card.weighted), str("weights" in info.files))
    places = output_places(dataset, tuple(channel.name for channel in card.outputs))
    window = window_for(dataset, card.history or None)
    return View(dataset, dataset.rows(split), 1, window, places)


def predict_rows(operator: Operator, view: View, batch: int = 8) -> Iterator[tuple[int, Array]]:
    """Yield each row and its prediction, [points channels] or [time points channels]."""
    operator.eval()
    source = Streamed(view, operator.device)
    for part in in_order(source, batch):
        with torch.no_grad(), quick_products(operator.device):
            made = operator.answer(part).cpu().numpy()
        mask = part.domain.mask
        counts = [made.shape[-2]] * len(made) if mask is None else mask.sum(-1).tolist()
        for row, field, count in zip(part.rows.tolist(), made, counts, strict=True):
            yield row, field[..., :count, :]


def points_outside(operator: Operator, view: View) -> list[int]:
    """Return how many points of each row lie outside the box of training; one count if shared."""
    rows = view.rows[:1] if view.dataset.info.mesh.shared else view.rows
    return [
        count_outside(operator, float_tensor(view.dataset.of_sample("coords", row))) for row in rows
    ]


def names_in(out: Path, operator: Operator, *, ragged: bool = False) -> list[str]:
    """Return what the arrays of predictions are called in a file: `.npy` has one for all."""
    if out.suffix.lower() == ".npy" and not ragged:
        return ["outputs"]
    return [channel.name for channel in operator.card.outputs] + ["offsets"] * ragged


def by_channel(operator: Operator, made: Array) -> dict[str, Array]:
    """Return predictions [... channels] as an array for each output."""
    return {channel.name: made[..., k] for k, channel in enumerate(operator.card.outputs)}


def predict_to_arrays(operator: Operator, view: View, out: Path) -> tuple[int, ...]:
    """Write the predictions of a view, an array for each output; return the shape of the first.

    Grids keep their axes. A ragged cloud has its points end to end, and `offsets` beside them.
    """
    refuse_unwritable(out, names_in(out, operator, ragged=view.dataset.offsets is not None))
    fields = [field for _, field in predict_rows(operator, view)]
    if view.dataset.offsets is not None:
        made = np.concatenate(fields, -2)
        ends = np.cumsum([field.shape[-2] for field in fields])
        more = {"offsets": np.concatenate(([0], ends)).astype(np.int64)}
    else:
        made, more = np.stack(fields), {}
        if view.shape is not None:
            made = made.reshape(*made.shape[:-2], *view.shape, made.shape[-1])
    channels = by_channel(operator, made)
    if out.suffix.lower() == ".npy":
        channels = {"outputs": made if len(channels) > 1 else made[..., 0]}
    write_arrays(out, {**channels, **more})
    first: Array = next(iter(channels.values()))
    return first.shape


def _refuse_other_channels(
    dataset: Dataset, role: Role, trained: Sequence[Channel], given: Sequence[Channel]
) -> None:
    ours, theirs = ([channel.name for channel in group] for group in (trained, given))
    way = f"; import it with the {role} of training"
    if len(ours) == len(theirs):
        names = shlex.quote(f"{role}={','.join(ours)}")
        way = f"; if they mean the same in this order, import it with `--names {names}`"
    _refuse_other(dataset, role, ", ".join(ours), ", ".join(theirs), way)


def _refuse_other(dataset: Dataset, what: str, ours: str, theirs: str, way: str = "") -> None:
    if ours != theirs:
        raise DataError(
            f"{dataset.path} does not fit this operator: its {what} are {theirs or 'none'}, in "
            f"training they were {ours or 'none'}{way}"
        )
