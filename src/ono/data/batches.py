"""From a view of a dataset to batches on a device.

Data that fits stays on the device as a whole and a batch is a gather; larger data is read ahead
by a thread. The order of an epoch is a function of seed and epoch alone, so a run can continue
from any position without having seen the batches before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ono.data.info import Array
from ono.data.view import Batch, View

_RESIDENT_SHARE = 0.4
_READ_ROWS = 64
_POINTS_AT_ONCE = 1 << 18


@runtime_checkable
class Source(Protocol):
    """Where batches come from."""

    def __len__(self) -> int: ...

    @property
    def many(self) -> int:
        """How many samples a pass without gradients takes at once."""

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
            shared = replace(domain, coords=domain.coords[:1].clone(), weights=weights)
            everything = replace(everything, domain=shared)
        mask = domain.mask
        self.lengths = None if mask is None else mask.sum(-1).numpy()
        self.all = everything.to(device)

    def __len__(self) -> int:
        return len(self.view)

    @property
    def many(self) -> int:
        """How many samples a pass without gradients takes at once."""
        return many_samples(self.view, self.all.values.device)

    def batches(self, order: Array, size: int) -> Iterator[Batch]:
        """Yield batches by gathering from what is already on the device."""
        for part in parts_of(order, size):
            index = torch.from_numpy(part).to(self.all.values.device, non_blocking=True)
            # A ragged batch is padded to its own longest sample, as when it is streamed.
            longest = None if self.lengths is None else int(self.lengths[part].max())
            yield replace(self.pick(index, longest), rows=self.all.rows[torch.from_numpy(part)])

    def pick(self, index: Int[Tensor, " batch"], longest: int | None = None) -> Batch:
        """Gather samples by their place in the view, cut after the `longest`; `rows` are places.

        Nothing here waits for the device.
        """
        domain, history = self.all.domain, self.all.history

        def gather(x: Tensor | None) -> Tensor | None:
            if x is None or len(x) == len(self.all.values):
                return None if x is None else x[index, :longest]
            return x.expand(len(index), *x.shape[1:])

        coords = gather(domain.coords)
        assert coords is not None
        return Batch(
            replace(
                domain,
                coords=coords,
                weights=gather(domain.weights),
                mask=gather(domain.mask),
            ),
            self.all.values[index, :longest],
            self.all.target[index][..., :longest, :],
            index,
            self.all.times,
            None if history is None else history[index][..., :longest, :],
        )


class Streamed:
    """Rows read from disk while the device works."""

    def __init__(self, view: View, device: torch.device) -> None:
        self.view, self.device = view, device

    def __len__(self) -> int:
        return len(self.view)

    @property
    def many(self) -> int:
        """How many samples a pass without gradients takes at once."""
        return many_samples(self.view, self.device)

    def batches(self, order: Array, size: int) -> Iterator[Batch]:
        """Yield batches, reading two ahead."""
        parts = parts_of(order, size)
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


def many_samples(view: View, device: torch.device) -> int:
    """Return how many samples keep a device busy: a GPU wants more of small ones."""
    frames = 1 if view.times is None else len(view.times)
    return max(32, _POINTS_AT_ONCE // (view.points * frames)) if device.type == "cuda" else 32


def in_order(source: Source, size: int) -> Iterator[Batch]:
    """Yield every sample once, in the order of the rows."""
    return source.batches(np.arange(len(source)), size)


def training_rows(view: View) -> Iterator[Batch]:
    """Yield a view in pieces on the CPU, for passes that only collect statistics."""
    return in_order(Streamed(view, torch.device("cpu")), _READ_ROWS)


def parts_of(order: Array, size: int) -> list[Array]:
    """Cut an order into batches of a size; the last one may be smaller."""
    return [order[start : start + size] for start in range(0, len(order), size)]


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
