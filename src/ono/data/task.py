"""The three splits of a dataset as a recipe wants them, checked before anything is trained."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ono.data.batches import training_rows
from ono.data.benchmarks import BENCHMARKS
from ono.data.info import Split
from ono.data.store import Dataset
from ono.data.view import View, Window, real_points
from ono.errors import DataError, nearest


@dataclass(frozen=True, slots=True)
class Views:
    """Training, validation and test rows. Validation chooses, test is only reported."""

    train: View
    validation: View
    test: View


def views(
    dataset: Dataset,
    *,
    resolution: int | None = None,
    limits: dict[Split, int | None],
    outputs: tuple[str, ...] | None = None,
    history: int | None = None,
    train_steps: int | None = None,
) -> Views:
    """Cut a dataset into its splits at a resolution, with at most so many samples of each.

    Of a roll-out `history` frames are known; `train_steps` of the others are trained on and choose
    the checkpoint, and all of them are tested.
    """
    stride, channels = stride_for(dataset, resolution), output_places(dataset, outputs)
    window = window_for(dataset, history)
    trained = window
    if window is not None and train_steps is not None:
        if train_steps > window.steps:
            raise DataError(
                f"rollout.train_steps is {train_steps}, but only {window.steps} frames of "
                f"{dataset.path} come after the first {window.history}"
            )
        trained = replace(window, steps=train_steps)

    def view(split: Split) -> View:
        rows, limit = dataset.rows(split), limits.get(split)
        if limit is not None and limit > len(rows):
            raise DataError(
                f"data.{split} asks for {limit} samples, {dataset.path} has {len(rows)}; "
                f"{_way_to_more(dataset)}"
            )
        frames = window if split == "test" else trained
        return View(dataset, rows[:limit], stride, frames, channels)

    return Views(view("train"), view("validation"), view("test"))


def window_for(dataset: Dataset, history: int | None = None) -> Window | None:
    """Return the frames a roll-out knows and those it is asked for; half of them by default."""
    if dataset.info.task != "rollout" or dataset.times is None:
        if history is not None:
            raise DataError(
                f"{dataset.path} is a {dataset.info.task} task and has no frames to roll out; "
                "leave the section rollout out of the recipe"
            )
        return None
    frames = len(dataset.times)
    if frames < 2:
        raise DataError(f"{dataset.path} has {frames} frame, a roll-out needs at least two")
    history = max(1, frames // 2) if history is None else history
    if history >= frames:
        raise DataError(
            f"rollout.history is {history}, but {dataset.path} has {frames} frames, so none is "
            "left to predict"
        )
    return Window(history, frames - history)


def output_places(dataset: Dataset, names: tuple[str, ...] | None) -> tuple[int, ...] | None:
    """Return where the named output channels are; None stands for all of them."""
    if names is None:
        return None
    known = [channel.name for channel in dataset.info.outputs]
    for name in names:
        if name not in known:
            raise DataError(
                f"{dataset.path} has no output channel {name!r}; {nearest(name, known)}"
            )
    return tuple(known.index(name) for name in names)


def resolutions(dataset: Dataset) -> dict[int, int]:
    """Return the resolutions a grid can be subsampled to, with their strides.

    Both ends of every axis stay in: 85 nodes give 85, 43, 29, 22, 15 ... A periodic grid has no
    ends: 64 nodes give 64, 32, 16 ...
    """
    mesh = dataset.info.mesh
    if mesh.shape is None:
        return {}
    end = 0 if mesh.periodic else 1
    fits = [
        s
        for s in range(1, max(mesh.shape))
        if s == 1 or all((n - end) % s == 0 and (n - end) // s >= 2 for n in mesh.shape)
    ]
    return {(mesh.shape[0] - end) // s + end: s for s in fits}


def stride_for(dataset: Dataset, resolution: int | None) -> int:
    """Return the stride that gives a resolution; refuse one the grid does not contain."""
    if resolution is None:
        return 1
    known = resolutions(dataset)
    if not known:
        raise DataError(f"{dataset.path} is a point cloud and has no resolution; leave it out")
    if resolution not in known:
        raise DataError(
            f"{dataset.path} has no resolution {resolution}; its grid "
            f"{'x'.join(map(str, dataset.info.mesh.shape or ()))} contains "
            f"{', '.join(map(str, sorted(known, reverse=True)))}"
        )
    return known[resolution]


def refuse_bad_rows(view: View, split: Split) -> None:
    """Refuse values that are not finite and targets that say nothing, naming the rows."""
    not_finite: list[int] = []
    zero: list[int] = []
    lows, highs = [], []
    for batch in training_rows(view):
        target = batch.target.flatten(1)
        domain = batch.domain
        parts = (target, batch.values, domain.coords, domain.weights, batch.history)
        finite = torch.stack(
            [torch.isfinite(part.flatten(1)).all(1) for part in parts if part is not None]
        ).all(0)
        not_finite += _rows(batch.rows, ~finite)
        zero += _rows(batch.rows, finite & (target == 0).all(1))
        flat = real_points(batch.target, batch.domain.mask)
        lows.append(flat.amin(0))
        highs.append(flat.amax(0))
    for rows, what in ((not_finite, "NaN or infinite values"), (zero, "an output of zero")):
        if rows:
            shown = ", ".join(map(str, rows[:10])) + (" ..." if len(rows) > 10 else "")
            look = shlex.join(("ono", "data", "check", str(view.dataset.path)))
            raise DataError(
                f"{view.dataset.path}: {len(rows)} {split} samples have {what} (rows {shown}); "
                f"`{look}` lists them, repair or leave them out"
            )
    constant = torch.stack(lows).amin(0) == torch.stack(highs).amax(0)
    if split == "train" and constant.any():
        channels = zip(view.outputs, constant, strict=True)
        names = [channel.name for channel, same in channels if same]
        raise DataError(
            f"{view.dataset.path}: the output {', '.join(names)} has one value in all {len(view)} "
            "train samples, so there is nothing to learn; leave the channel out"
        )


def at_resolution(view: View, resolution: int | None) -> View:
    """Return the same rows at another resolution."""
    return replace(view, stride=stride_for(view.dataset, resolution))


def _way_to_more(dataset: Dataset) -> str:
    maker = dataset.info.provenance.maker
    if maker in BENCHMARKS:
        return f"make more with `ono data make {maker} --samples`"
    return "ask for fewer, or import more"


def _rows(rows: Tensor, bad: Tensor) -> list[int]:
    return [int(row) for row in rows[bad]]
