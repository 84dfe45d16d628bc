"""The three splits of a dataset as a recipe wants them, checked before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ono.data.batches import View, training_rows
from ono.data.info import Split
from ono.data.store import Dataset
from ono.errors import DataError


@dataclass(frozen=True, slots=True)
class Views:
    """Training, validation and test rows. Validation chooses, test is only reported."""

    train: View
    validation: View
    test: View


def views(
    dataset: Dataset, *, resolution: int | None = None, limits: dict[Split, int | None]
) -> Views:
    """Cut a dataset into its splits at a resolution, with at most so many samples of each."""
    stride = stride_for(dataset, resolution)

    def view(split: Split) -> View:
        rows, limit = dataset.rows(split), limits.get(split)
        if limit is not None and limit > len(rows):
            raise DataError(
                f"data.{split} asks for {limit} samples, {dataset.path} has {len(rows)}; make more "
                "with `ono data make --samples`"
            )
        return View(dataset, rows[:limit], stride)

    return Views(view("train"), view("validation"), view("test"))


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
        parts = (target, batch.values, batch.domain.coords, batch.domain.weights)
        finite = torch.stack(
            [torch.isfinite(part.flatten(1)).all(1) for part in parts if part is not None]
        ).all(0)
        not_finite += _rows(batch.rows, ~finite)
        zero += _rows(batch.rows, finite & (target == 0).all(1))
        real = batch.target if batch.domain.mask is None else batch.target[batch.domain.mask]
        flat = real.reshape(-1, real.shape[-1])
        lows.append(flat.amin(0))
        highs.append(flat.amax(0))
    for rows, what in ((not_finite, "NaN or infinite values"), (zero, "an output of zero")):
        if rows:
            shown = ", ".join(map(str, rows[:10])) + (" ..." if len(rows) > 10 else "")
            raise DataError(
                f"{view.dataset.path}: {len(rows)} {split} samples have {what} (rows {shown}); "
                f"`ono data check {view.dataset.path}` lists them, repair or leave them out"
            )
    constant = torch.stack(lows).amin(0) == torch.stack(highs).amax(0)
    if split == "train" and constant.any():
        channels = zip(view.dataset.info.outputs, constant, strict=True)
        names = [channel.name for channel, same in channels if same]
        raise DataError(
            f"{view.dataset.path}: the output {', '.join(names)} has one value in all {len(view)} "
            "train samples, so there is nothing to learn; leave the channel out"
        )


def at_resolution(view: View, resolution: int | None) -> View:
    """Return the same rows at another resolution."""
    return replace(view, stride=stride_for(view.dataset, resolution))


def _rows(rows: Tensor, bad: Tensor) -> list[int]:
    return [int(row) for row in rows[bad]]
