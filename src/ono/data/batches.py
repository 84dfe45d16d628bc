"""From a dataset on disk to batches on a device.

Data that fits stays on the device as a whole and a batch is a gather; larger data is read ahead
by a thread. The order of an epoch is a function of seed and epoch alone, so a run can continue
from any position without having seen the batches before it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ono.data.info import Array, Channel
from ono.data.store import Dataset
from ono.domain import Domain, trapezoidal
from ono.errors import DataError

_RESIDENT_SHARE = 0.4
_READ_ROWS = 64


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
        domain = Domain(coords, self.shape, weights)
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


@runtime_checkable
class Source(Protocol):
    """Where batches come from."""

    def __len__(self) -> int: ...

    def batches(self, order: Array, size: int) -> Iterator[Batch]:
        """Yield batches of `size` in the given order; the last one may be smaller."""


class Resident:
    """All rows of a view on the device; a batch is a gather."""

    def __init__(self, view: View, device: torch.device) -> None:
        self.view = view
        everything = view.read(np.arange(len(view)))
        data, domain = view.dataset, everything.domain
        if data.info.mesh.shared and (data.weights is None or data.weights.ndim == 1):
            weights = None if domain.weights is None else domain.weights[:1].clone()
            shared = Domain(domain.coords[:1].clone(), domain.shape, weights)
            everything = replace(everything, domain=shared)
        mask = domain.mask
        self.lengths = None if mask is None else mask.sum(-1).numpy()
        self.all = everything.to(device)

    def __len__(self) -> int:
        return len(self.view)

    def batches(self, order: Array, size: int) -> Iterator[Batch]:
        """Yield batches by gathering from what is already on the device."""
        device = self.all.values.device
        for part in _parts(order, size):
            index = torch.from_numpy(part).to(device, non_blocking=True)
            domain = self.all.domain
            # A ragged batch is padded to its own longest sample, as when it is streamed.
            longest = None if self.lengths is None else int(self.lengths[part].max())

            def pick(
                x: Tensor | None, index: Tensor = index, longest: int | None = longest
            ) -> Tensor | None:
                if x is None or len(x) == len(self.all.values):
                    return None if x is None else x[index, :longest]
                return x.expand(len(index), *x.shape[1:])

            coords, history = pick(domain.coords), self.all.history
            assert coords is not None
            yield Batch(
                Domain(coords, domain.shape, pick(domain.weights), pick(domain.mask)),
                self.all.values[index, :longest],
                self.all.target[index][..., :longest, :],
                self.all.rows[torch.from_numpy(part)],
                self.all.times,
                None if history is None else history[index][..., :longest, :],
            )


class Streamed:
    """Rows read from disk while the device works."""

    def __init__(self, view: View, device: torch.device) -> None:
        self.view, self.device = view, device

    def __len__(self) -> int:
        return len(self.view)

    def batches(self, order: Array, size: int) -> Iterator[Batch]:
        """Yield batches, reading two ahead."""
        parts = _parts(order, size)
        with ThreadPoolExecutor(1) as pool:
            ahead = [pool.submit(self.view.read, part) for part in parts[:2]]
            for position in range(len(parts)):
                batch = ahead.pop(0).result()
                if position + 2 < len(parts):
                    ahead.append(pool.submit(self.view.read, parts[position + 2]))
                yield batch.to(self.device)


def load(
    view: View, device: torch.device, memory: Literal["auto", "resident", "streamed"] = "auto"
) -> Source:
    """Keep a view on the device if it fits into a fair share of its memory, else stream it."""
    if memory == "auto":
        memory = "resident" if view.bytes < _RESIDENT_SHARE * _free_bytes(device) else "streamed"
    return Resident(view, device) if memory == "resident" else Streamed(view, device)


def epoch_order(seed: int, epoch: int, count: int) -> Array:
    """Return the order of an epoch's samples: the same for the same seed and epoch, anywhere.

    >>> (epoch_order(0, 3, 100) == epoch_order(0, 3, 100)).all()
    np.True_
    """
    stream = np.random.Philox(np.random.SeedSequence((seed, epoch)))
    return np.random.Generator(stream).permutation(count)


def in_order(source: Source, size: int) -> Iterator[Batch]:
    """Yield every sample once, in the order of the rows."""
    return source.batches(np.arange(len(source)), size)


def training_rows(view: View) -> Iterator[Batch]:
    """Yield a view in pieces on the CPU, for passes that only collect statistics."""
    return in_order(Streamed(view, torch.device("cpu")), _READ_ROWS)


def _parts(order: Array, size: int) -> list[Array]:
    return [order[start : start + size] for start in range(0, len(order), size)]


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


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
