"""Some samples of a dataset as tensors: where, what goes in, what should come out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ono.data.info import Array, Channel
from ono.data.store import Dataset
from ono.domain import Domain, trapezoidal
from ono.errors import DataError


@dataclass(frozen=True, slots=True)
class Batch:
    """Some samples on one device: where, what goes in, what should come out, which rows.

    A `timed` target is [batch time points out] with the `times` it belongs to. A `rollout` also
    has the frames before its target, `history` [batch time points out].
    """

    domain: Domain
    values: Float[Tensor, "batch points channels"]
    target: Float[Tensor, "batch ... out"]
    rows: Int[Tensor, " batch"]
    times: Float[Tensor, " time"] | None = None
    history: Float[Tensor, "batch frames points out"] | None = None

    def to(self, device: torch.device | str) -> Batch:
        """Return this batch on another device."""

        def move(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device, non_blocking=True)

        return Batch(
            self.domain.to(device),
            self.values.to(device, non_blocking=True),
            self.target.to(device, non_blocking=True),
            self.rows,
            move(self.times),
            move(self.history),
        )

    def split(self, size: int | None) -> list[Batch]:
        """Return parts of so many samples, the last one perhaps smaller; None: all in one."""
        samples = len(self.values)
        if size is None or size >= samples:
            return [self]
        return [self._part(slice(start, start + size)) for start in range(0, samples, size)]

    def _part(self, some: slice) -> Batch:
        def cut(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[some]

        whole = self.domain
        domain = Domain(
            whole.coords[some], whole.shape, cut(whole.weights), cut(whole.mask), whole.periodic
        )
        return Batch(
            domain,
            self.values[some],
            self.target[some],
            self.rows[some],
            self.times,
            cut(self.history),
        )


@dataclass(frozen=True, slots=True)
class Window:
    """The frames of a series that a roll-out uses: so many are known, so many are asked for."""

    history: int
    steps: int


@dataclass(frozen=True, slots=True)
class View:
    """Some rows of a dataset, on every `stride`-th node along each axis of its mesh.

    `channels` picks outputs by their place; a `rollout` needs a `window`.
    """

    dataset: Dataset
    rows: range
    stride: int = 1
    window: Window | None = None
    channels: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.stride > 1 and self.dataset.offsets is not None:
            raise DataError("a point cloud has no stride; only meshes with a shape can be thinned")
        if (self.window is not None) != (self.dataset.info.task == "rollout"):
            raise DataError(
                f"{self.dataset.path} is a {self.dataset.info.task} task; a window of frames is "
                "for roll-outs, and a roll-out needs one"
            )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The logical shape after subsampling."""
        shape = self.dataset.info.mesh.shape
        return shape and tuple(-(-n // self.stride) for n in shape)

    @property
    def in_channels(self) -> int:
        """Input channels; the numbers of a whole sample count as fields that do not vary."""
        return len(self.dataset.info.inputs) + len(self.dataset.info.params)

    @property
    def outputs(self) -> tuple[Channel, ...]:
        """The output channels this view has."""
        known = self.dataset.info.outputs
        return known if self.channels is None else tuple(known[i] for i in self.channels)

    @property
    def times(self) -> Array | None:
        """When the targets are."""
        times, window = self.dataset.times, self.window
        if times is None or window is None:
            return times
        return np.asarray(times[window.history : window.history + window.steps])

    @property
    def free_times(self) -> int | None:
        """How many times a training step may draw from; None if steady, or a roll-out.

        The frames of a roll-out follow from each other, so none can be left out.
        """
        return None if self.times is None or self.window is not None else len(self.times)

    @property
    def points(self) -> int:
        """Points of a sample; their mean if samples differ."""
        if self.shape is not None:
            return math.prod(self.shape)
        coords, info = self.dataset.coords, self.dataset.info
        return coords.size // info.mesh.dim // (1 if info.mesh.shared else info.samples)

    @property
    def bytes(self) -> int:
        """Roughly what all rows take in memory as float32."""
        mesh = self.dataset.info.mesh
        frames = 1 if self.dataset.times is None else len(self.dataset.times)
        channels = self.in_channels + frames * len(self.outputs)
        return 4 * len(self) * self.points * (channels + (0 if mesh.shared else mesh.dim))

    def read(self, index: Array) -> Batch:
        """Read samples by their position in this view, padded to the longest if ragged."""
        rows = np.asarray(self.rows)[index]
        if self.dataset.offsets is not None:
            return self._read_ragged(rows)
        data, mesh = self.dataset, self.dataset.info.mesh
        values, target = self._subsample(data.inputs, rows), self._subsample(data.outputs, rows)
        history, target = self._frames(target)
        if mesh.shared:
            coords = self._subsample(data.coords[None], np.zeros(1, int)).expand(len(rows), -1, -1)
        else:
            coords = self._subsample(data.coords, rows)
        weights = self._weights(rows)
        if data.params is not None:
            params = float_tensor(data.params[rows])[:, None].expand(-1, values.shape[1], -1)
            values = torch.cat((values, params), -1)
        domain = Domain(coords, self.shape, weights, periodic=mesh.periodic)
        kept = torch.from_numpy(rows.copy())
        return Batch(domain, values, target, kept, self._moments(), history)

    def _frames(self, outputs: Tensor) -> tuple[Tensor | None, Tensor]:
        """Cut outputs into what is known before and what is asked for."""
        if self.channels is not None:
            outputs = outputs[..., list(self.channels)]
        if self.window is None:
            return None, outputs
        first, last = self.window.history, self.window.history + self.window.steps
        return outputs[:, :first], outputs[:, first:last]

    def _moments(self) -> Tensor | None:
        return None if self.times is None else float_tensor(self.times)

    def _weights(self, rows: Array) -> Tensor | None:
        """Return quadrature weights: those of the dataset, or the trapezoidal rule of a grid."""
        weights = self.dataset.weights
        mesh = self.dataset.info.mesh
        if weights is None:
            bounded = mesh.kind == "grid" and not mesh.periodic
            if bounded and self.shape is not None:
                return trapezoidal(self.shape).expand(len(rows), -1)
            return None
        if weights.ndim == 1:
            picked = self._subsample(weights[None, :, None], np.zeros(1, int))[..., 0]
        else:
            picked = self._subsample(weights[..., None], rows)[..., 0]
        return (picked / picked.sum(-1, keepdim=True)).expand(len(rows), -1)

    def _subsample(self, array: Array, rows: Array) -> Tensor:
        picked = array[rows]
        shape = self.dataset.info.mesh.shape
        if self.stride > 1 and shape is not None:
            before, channels = picked.shape[:-2], picked.shape[-1]
            grid = picked.reshape(*before, *shape, channels)
            thin = slice(None, None, self.stride)
            cut = (*(slice(None),) * len(before), *(thin,) * len(shape))
            picked = grid[cut].reshape(*before, self.points, channels)
        return float_tensor(picked)

    def _read_ragged(self, rows: Array) -> Batch:
        data, offsets = self.dataset, self.dataset.offsets
        assert offsets is not None
        spans = [slice(int(offsets[row]), int(offsets[row + 1])) for row in rows]
        longest = max(span.stop - span.start for span in spans)

        def padded(array: Array) -> Tensor:
            block = torch.zeros(len(spans), longest, *array.shape[1:])
            for i, span in enumerate(spans):
                block[i, : span.stop - span.start] = float_tensor(array[span])
            return block

        mask = padded(np.ones((len(data.coords), 1), np.float32))[..., 0] > 0
        weights = None if data.weights is None else padded(data.weights[:, None])[..., 0]
        if weights is not None:
            weights = weights / weights.sum(-1, keepdim=True)
        values = padded(data.inputs)
        if data.params is not None:
            params = float_tensor(data.params[rows])[:, None].expand(-1, longest, -1)
            values = torch.cat((values, params), -1)
        domain = Domain(padded(data.coords), None, weights, mask)
        outputs = padded(data.outputs)
        history, target = self._frames(outputs if data.times is None else outputs.transpose(1, 2))
        kept = torch.from_numpy(rows.copy())
        return Batch(domain, values, target, kept, self._moments(), history)


def real_points(
    values: Float[Tensor, "batch ... points channels"],
    mask: Bool[Tensor, "batch points"] | None,
) -> Float[Tensor, "rows channels"]:
    """Return the values of all points, samples and times below each other, without padding."""
    if mask is None:
        return values.flatten(0, -2)
    return (values.transpose(1, 2) if values.ndim == 4 else values)[mask].flatten(0, -2)


def float_tensor(array: Array) -> Tensor:
    """Copy an array into a float32 tensor."""
    return torch.from_numpy(np.array(array, dtype=np.float32))
