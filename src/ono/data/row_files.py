"""Array files that are filled row by row."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ono.data.info import Array, ArrayName
from ono.files import naming


@dataclass(frozen=True, slots=True)
class RowFile:
    """An array file whose rows are filled in place.

    Ordinary writes, because a full disk under a writable memory map kills the process. The header
    is read once: NumPy parses it with `ast`, which Python 3.11 cannot do in two threads at a time.
    """

    path: Path
    offset: int
    stride: int

    @classmethod
    def open(cls, path: Path) -> RowFile:
        """Learn where the rows of a `.npy` file are."""
        whole = np.load(path, mmap_mode="r", allow_pickle=False)
        return cls(path, whole.offset, whole.strides[0])

    def write(self, rows: Sequence[int], values: Array) -> None:
        """Write consecutive rows and sync them."""
        with naming(self.path), self.path.open("r+b") as stream:
            stream.seek(self.offset + rows[0] * self.stride)
            stream.write(np.ascontiguousarray(values).data)
            stream.flush()
            os.fsync(stream.fileno())


class ChunkFiles:
    """The files a chunk goes to."""

    def __init__(self, out: Path, names: Iterable[str], progress: str) -> None:
        self.arrays = {name: RowFile.open(out / f"{name}.npy") for name in names}
        self.progress = RowFile.open(out / progress)

    def write(self, rows: list[int], values: Mapping[ArrayName, Array], records: Array) -> None:
        """Store a chunk; its records go last, as they say that it is there."""
        with ThreadPoolExecutor(len(values)) as pool:
            writes = [pool.submit(self.arrays[n].write, rows, v) for n, v in values.items()]
        for done in writes:
            done.result()
        self.progress.write(rows, records)
