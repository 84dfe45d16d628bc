"""Fields of one sample, kept small beside the ledger: a page draws them without the run.

What is kept is the truth and the error of the prediction, in half precision, on at most so many
nodes along an axis; the errors in numbers are those of the full grid.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ono.data.info import Array
from ono.data.task import at_resolution
from ono.data.view import Batch, View
from ono.errors import DataError
from ono.evaluate.metrics import relative_l2
from ono.evaluate.operator import Operator
from ono.experiments.ledger import Line
from ono.files import replacing
from ono.train.recipe import Recipe

_ARRAYS = ("truth", "error")
_MOST_NODES = 106
_MOST_FRAMES = 5


@dataclass(frozen=True, slots=True)
class Frame:
    """Truth and error of a channel [nodes nodes] at one resolution or time."""

    title: str
    group: str
    relative_error: float
    truth: Array
    error: Array


@dataclass(frozen=True, slots=True)
class Picture:
    """What an operator made of one sample; every frame has the same channel."""

    name: str
    quantity: str
    unit: str
    row: int
    frames: tuple[Frame, ...]

    def save(self, path: Path) -> None:
        """Write one file, whole or not at all."""
        told = {
            "name": self.name,
            "quantity": self.quantity,
            "unit": self.unit,
            "row": self.row,
            "frames": [[f.title, f.group, f.relative_error] for f in self.frames],
        }
        arrays = {}
        for number, frame in enumerate(self.frames):
            for name in _ARRAYS:
                array = np.asarray(getattr(frame, name))
                arrays[f"{name} {number}"] = np.ascontiguousarray(array, np.float16)
        with replacing(path) as aside:
            aside.write_bytes(save(arrays, {"picture": json.dumps(told)}))

    @classmethod
    def load(cls, path: Path) -> Picture:
        """Read what was kept."""
        try:
            with safe_open(path, "numpy") as file:
                told = json.loads(file.metadata()["picture"])
                frames = tuple(
                    Frame(title, group, error, *(file.get_tensor(f"{x} {n}") for x in _ARRAYS))
                    for n, (title, group, error) in enumerate(told.pop("frames"))
                )
                return cls(**told, frames=frames)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is no picture ({error}); delete it, or restore the file"
            ) from None


def picture_file(directory: Path, line: Line) -> Path:
    """Return where the picture of a line is kept."""
    parts = (line.recipe.replace("/", "-"), str(line.seed), line.recipe_sha256[:8])
    data = (line.data_id[:8],) if line.data_id else ()
    return directory / f"{'-'.join((*parts, *data))}.safetensors"


def median_row(errors: dict[int, float]) -> int:
    """Return the sample in the middle: neither the best nor the worst is typical.

    >>> median_row({7: 0.3, 8: 0.2, 9: 0.1})
    8
    """
    return sorted(errors, key=lambda row: (errors[row], row))[(len(errors) - 1) // 2]


def picture_of(
    recipe: Recipe, operator: Operator, view: View, row: int, finer: Sequence[int]
) -> Picture:
    """Return what there is to see of a sample: times that were not trained on, or finer grids."""
    rollout, trained = recipe.rollout, recipe.data.resolution
    if rollout is not None and rollout.train_steps is not None:
        return at_times(recipe.name, operator, view, row, rollout.train_steps)
    if trained is None:
        raise DataError(f"{recipe.name} has no data.resolution, so no other can be compared")
    return at_resolutions(recipe.name, operator, view, row, trained, finer)


@torch.no_grad()
def at_resolutions(
    name: str, operator: Operator, view: View, row: int, trained: int, finer: Sequence[int]
) -> Picture:
    """Predict one sample on the grid of training and on finer ones."""
    frames = []
    for nodes in (trained, *finer):
        batch = _read(at_resolution(view, nodes), operator, row)
        group = "resolution of training" if nodes == trained else "finer"
        title = " × ".join(map(str, batch.domain.shape or ()))
        frames.append(_frame(title, group, operator.answer(batch), batch.target, batch))
    return _picture(name, view, row, frames)


@torch.no_grad()
def at_times(name: str, operator: Operator, view: View, row: int, seen: int) -> Picture:
    """Predict one series freely and keep a few times that were trained on and a few after."""
    batch = _read(view, operator, row)
    assert batch.times is not None
    prediction, count = operator.answer(batch), len(batch.times)
    shown = sorted({0, (seen - 1) // 2, seen - 1, min(seen, count - 1), count - 1})[-_MOST_FRAMES:]
    frames = [
        _frame(
            f"t = {float(batch.times[i]):.4g}",
            "seen times" if i < seen else "unseen times",
            prediction[:, i],
            batch.target[:, i],
            batch,
        )
        for i in shown
    ]
    return _picture(name, view, row, frames)


def _read(view: View, operator: Operator, row: int) -> Batch:
    device = operator.device
    return view.read(np.array([view.rows.index(row)])).to(device)


def _frame(
    title: str, group: str, prediction: torch.Tensor, truth: torch.Tensor, batch: Batch
) -> Frame:
    shape = batch.domain.shape
    assert shape is not None
    relative = float(relative_l2(prediction, truth)[0])
    true, error = (
        x[0, :, 0].reshape(shape).double().cpu().numpy() for x in (truth, prediction - truth)
    )
    fits = [s for s in range(1, max(shape)) if -(-max(shape) // s) <= _MOST_NODES]
    with_both_ends = (s for s in fits if all((nodes - 1) % s == 0 for nodes in shape))
    stride = next(with_both_ends, fits[0]) if fits[0] > 1 else 1
    return Frame(title, group, relative, true[::stride, ::stride], error[::stride, ::stride])


def _picture(name: str, view: View, row: int, frames: list[Frame]) -> Picture:
    channel = view.outputs[0]
    return Picture(name, channel.name, channel.unit, row, tuple(frames))
