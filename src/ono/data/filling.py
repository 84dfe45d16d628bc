"""Fill the arrays of a dataset chunk by chunk, so that a kill costs at most one chunk.

A chunk is written and synced before `making.npy` records it. Whoever comes next with the same
request continues from there and ends with the same bytes; `dataset.json` is written last.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from ono.data.info import Array, ArrayName, Info, Report, Scalar
from ono.data.plan import Plan
from ono.data.row_files import ChunkFiles
from ono.data.store import REQUEST_FILE, open_array, save_array, write_info
from ono.errors import DataError, Interrupted, OnoError
from ono.files import naming, sync_file, write_text

PROGRESS_FILE = "making.npy"
LOCK_FILE = "making.lock"
REDRAWS = 0.05  # the share of samples that may be redrawn
FEW_REDRAWS = 5  # the number that is forgiven however small the dataset

# A record of 32 bytes lies within one disk sector: `done` is never durable without the rest.
PROGRESS = np.dtype(
    [("done", "<i8"), ("residual", "<f8"), ("iterations", "<i8"), ("attempt", "<i8")]
)


class Request(BaseModel, frozen=True, extra="forbid"):
    """What was asked for: equal requests give the same dataset."""

    maker: str
    size: str
    samples: int
    seed: int | None
    settings: dict[str, Scalar]

    @classmethod
    def of(cls, info: Info) -> Request:
        """Return the request that `info` answers."""
        source = info.provenance.model_dump(include={"maker", "size", "seed", "settings"})
        return cls(samples=info.samples, **source)

    def require(self, found: Request, path: Path) -> None:
        """Raise if the directory belongs to another request."""
        mine, theirs = self.model_dump(), found.model_dump()
        differ = [f"{k} {theirs[k]!r}, not {mine[k]!r}" for k in mine if mine[k] != theirs[k]]
        if differ:
            raise DataError(f"{path} was made with {'; '.join(differ)}: choose another directory")


def tidy(out: Path) -> None:
    """Remove what only an unfinished dataset needs."""
    for name in (REQUEST_FILE, PROGRESS_FILE, LOCK_FILE):
        (out / name).unlink(missing_ok=True)


@dataclass
class Filling:
    """One process at work on one directory."""

    out: Path
    plan: Plan
    request: Request
    progress: Callable[[int, int], None] | None
    between: Callable[[], None] | None = None
    failures: list[str] = field(default_factory=list)

    def run(self, device: str, batch: int) -> None:
        """Fill the rows that are not done, then write `dataset.json`."""
        state = self._start()
        files = ChunkFiles(self.out, self.plan.filled, PROGRESS_FILE)
        self._tell(state)
        try:
            with (
                ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool,
                ThreadPoolExecutor(1) as writer,
            ):
                written: list[tuple[Future[None], list[int], Array]] = []
                for rows, drawn in self._drawn_ahead(pool, state, batch):
                    state[rows] = 0
                    values, records = self._solve(rows, drawn, state, device)
                    state["attempt"][rows] = records["attempt"]
                    writing = writer.submit(files.write, rows, values, records)
                    before, written = written, [(writing, rows, records)]
                    if self.between is not None:
                        self.between()
                    self._settle(before, state)  # a chunk is written while the next is solved
                self._settle(written, state)
            self._finish(state)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped with {self._read_progress()['done'].sum()} of {len(state)} samples in "
                f"{self.out}; "
                "run the same command again to continue",
                signal.SIGINT,
            ) from None

    def _settle(self, written: list[tuple[Future[None], list[int], Array]], state: Array) -> None:
        """Wait for the chunk that is being written and count it as done."""
        for future, rows, records in written:
            future.result()
            state[rows] = records
            self._tell(state)

    def _finish(self, state: Array) -> None:
        """Hash the files and write `dataset.json`: from here on it is a dataset."""
        report = Report(
            converged=[True] * len(state),
            residual=state["residual"].tolist(),
            iterations=state["iterations"].tolist(),
            attempt=state["attempt"].tolist(),
        )
        info = self.plan.info.model_copy(update={"report": report})
        write_info(self.out, info, [*self.plan.fixed, *self.plan.filled])
        tidy(self.out)

    def _tell(self, state: Array) -> None:
        if self.progress is not None:
            self.progress(int(state["done"].sum()), len(state))

    def _start(self) -> Array:
        """Return the records of all samples, after laying out the files if that is not done."""
        names = {file.name for file in self.out.iterdir()} - {LOCK_FILE}
        leftovers = {name for name in names if name.startswith(".") and name.endswith(".tmp")}
        known = REQUEST_FILE in names
        if not known and names - leftovers:
            raise DataError(f"{self.out} is not empty and not a dataset; choose another directory")
        if known:
            self._require_same_request()
        for name in leftovers:
            (self.out / name).unlink()
        laid_out = PROGRESS_FILE in names
        state = self._read_progress() if laid_out else np.zeros(self.plan.info.samples, PROGRESS)
        self._require_space(int((state["done"] == 0).sum()))
        if not laid_out:
            try:
                self._lay_out(state)
            except OSError:  # nothing is there to go on with: the place is free for any request
                for array in (*self.plan.fixed, *self.plan.filled):
                    (self.out / f"{array}.npy").unlink(missing_ok=True)
                tidy(self.out)
                raise
        return state

    def _require_same_request(self) -> None:
        try:
            found = Request.model_validate_json((self.out / REQUEST_FILE).read_bytes())
        except ValidationError:
            raise self._damaged(REQUEST_FILE) from None
        self.request.require(found, self.out)

    def _damaged(self, name: str) -> DataError:
        return DataError(f"{self.out / name} is damaged; remove {self.out} and start again")

    def _read_progress(self) -> Array:
        for name in (PROGRESS_FILE, *(f"{n}.npy" for n in (*self.plan.fixed, *self.plan.filled))):
            try:
                open_array(self.out / name)
            except (ValueError, EOFError, FileNotFoundError):
                raise self._damaged(name) from None
        state: Array = np.load(self.out / PROGRESS_FILE, allow_pickle=False)
        return state

    def _lay_out(self, state: Array) -> None:
        write_text(self.out / REQUEST_FILE, self.request.model_dump_json(indent=1) + "\n")
        for name, array in self.plan.fixed.items():
            save_array(self.out / f"{name}.npy", array)
        for name, rows in self.plan.filled.items():
            file, shape = self.out / f"{name}.npy", (len(state), *rows.shape)
            with naming(file):
                np.lib.format.open_memmap(file, "w+", np.dtype(rows.dtype), shape)
                sync_file(file)
        save_array(self.out / PROGRESS_FILE, state)  # last: it says that the layout is complete

    def _require_space(self, samples: int) -> None:
        filled = self.plan.filled.values()
        row = sum(math.prod(rows.shape) * np.dtype(rows.dtype).itemsize for rows in filled)
        need, free = samples * (row + PROGRESS.itemsize), shutil.disk_usage(self.out).free
        if need > free:
            raise OnoError(
                f"{samples} samples need {need / 1e9:.3g} GB in {self.out}, {free / 1e9:.3g} GB "
                "are free; make room, choose another directory or make fewer"
            )

    def _drawn_ahead(
        self, pool: ThreadPoolExecutor, state: Array, batch: int
    ) -> Iterator[tuple[list[int], list[Mapping[str, Array]]]]:
        """Yield the rows of each unfinished chunk with their draws, made while others are solved.

        A chunk is done whole or done again: the last digits of a solution may depend on how many
        are solved together, and a resumed run must give the same bytes.
        """

        def submit(rows: list[int]) -> list[Future[Mapping[str, Array]]]:
            return [pool.submit(self.plan.draw, index, 0) for index in rows]

        ranges = [range(len(state))[k : k + batch] for k in range(0, len(state), batch)]
        chunks = [list(rows) for rows in ranges if not state["done"][rows].all()]
        futures = submit(chunks[0]) if chunks else []
        # Not strict: a kill after the last chunk leaves none, and only the end to be done.
        for rows, following in zip(chunks, [*chunks[1:], []], strict=False):
            ready, futures = futures, submit(following)
            yield rows, [future.result() for future in ready]

    def _solve(
        self, rows: list[int], drawn: list[Mapping[str, Array]], state: Array, device: str
    ) -> tuple[dict[ArrayName, Array], Array]:
        """Return the arrays and records of a chunk, redrawing samples until all are good."""
        values: dict[ArrayName, Array] = {}
        records = np.zeros(len(rows), PROGRESS)
        todo = np.arange(len(rows))
        while len(todo):
            batch = {name: np.stack([drawn[i][name] for i in todo]) for name in drawn[todo[0]]}
            solved = self.plan.solve(batch, device)
            finite = np.isfinite(solved.residual)
            for name, form in self.plan.filled.items():
                given = solved.arrays[name] if name in solved.arrays else batch[name]
                with np.errstate(over="ignore", invalid="ignore"):  # judged by the next lines
                    given = np.asarray(given, form.dtype).reshape(len(todo), *form.shape)
                    # A sum is finite only if every term is, and needs no array of flags.
                    finite &= np.isfinite(given.reshape(len(todo), -1).sum(1, dtype=np.float64))
                if len(todo) == len(rows):
                    values[name] = given
                else:
                    values[name][todo] = given
            records["done"][todo] = finite & solved.converged
            records["residual"][todo] = solved.residual
            records["iterations"][todo] = solved.iterations
            for i, whole in zip(todo, finite, strict=True):
                if not records["done"][i]:
                    self.failures.append(_why(rows[i], records[i], finite=bool(whole)))
            todo = todo[records["done"][todo] == 0]
            records["attempt"][todo] += 1
            self._limit_redraws(int(state["attempt"].sum() + records["attempt"].sum()))
            for i in todo:
                drawn[i] = self.plan.draw(rows[i], int(records["attempt"][i]))
        return values, records

    def _limit_redraws(self, redraws: int) -> None:
        total = self.plan.info.samples
        if redraws > max(FEW_REDRAWS, REDRAWS * total):
            shown = "; ".join(self.failures[:10])
            more = f"; and {len(self.failures) - 10} more" if len(self.failures) > 10 else ""
            raise OnoError(
                f"{redraws} redraws for {total} samples, more than {REDRAWS:.0%}: {shown}{more}; "
                "the solver does not suit these inputs, so the dataset was not finished"
            )


def _why(index: int, record: np.void, *, finite: bool) -> str:
    reason = (
        f"residual {record['residual']:.1e} after {record['iterations']} iterations"
        if finite
        else "values that are not finite"
    )
    return f"sample {index} attempt {record['attempt']}: {reason}"
