"""The data an experiment runs on: found, made from physics, or made up for measuring speed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ono.data.benchmarks import benchmark
from ono.data.generate import make
from ono.data.info import Info
from ono.data.official.reader import MAKER
from ono.data.store import INFO_FILE, Dataset
from ono.device import choose_device
from ono.errors import DataError, OnoError, RunInUse
from ono.experiments.budgets import Budget
from ono.experiments.grid import Cell
from ono.experiments.ledger import Source
from ono.experiments.stand_in import stand_in

_STAND_IN_SAMPLES = 64
_WAIT_SECONDS = 2.0

Progress = Callable[[int, int], None]


class OutOfTime(OnoError):
    """The time limit came while data was being made; what is made is kept."""


def place_of(cell: Cell, budget: Budget, root: Path) -> Path:
    """Return where the data of a cell is or will be.

    >>> from ono.experiments.budgets import BUDGETS
    >>> place_of(Cell("darcy/ono"), BUDGETS["short"], Path("data")).as_posix()
    'data/darcy-full'
    """
    parts = [cell.benchmark, budget.size]
    if cell.kind == "speed":
        parts.append("stand-in")
    elif (samples := _samples(cell, budget)) is not None:
        parts.append(str(samples))
    return root / "-".join(parts)


def _samples(cell: Cell, budget: Budget) -> int | None:
    if not budget.samples:
        return cell.samples
    return budget.samples.get(cell.benchmark, budget.samples[""])


def provide(
    cell: Cell,
    budget: Budget,
    root: Path,
    *,
    device: str = "auto",
    deadline: float | None = None,
    progress: Progress | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Dataset:
    """Open the data of a cell, or make it; wait where another process is making it.

    Once the deadline is past or it is `stopped`, the samples being solved together are the last.
    """
    path = place_of(cell, budget, root)
    if (path / INFO_FILE).exists():  # made before, or the published files
        return Dataset.open(path)
    if cell.kind == "speed":
        return _stand_in(cell, budget, path)

    def between() -> None:
        if stopped():
            raise OutOfTime(f"a signal came before {path} was made; the rest is made next time")
        _refuse_late(path, deadline)

    while True:
        between()
        try:
            return make(
                benchmark(cell.benchmark),
                path,
                size=budget.size,
                samples=_samples(cell, budget),
                device=choose_device(device),
                progress=progress,
                between=between,
            )
        except RunInUse:
            time.sleep(_WAIT_SECONDS)
        except DataError as error:
            raise DataError(f"{error} (in --data {root})") from None


def _stand_in(cell: Cell, budget: Budget, path: Path) -> Dataset:
    """Make data up aside and move it to its place: others may be doing the same."""
    samples = 5 if budget.is_smoke else _STAND_IN_SAMPLES
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        stand_in(cell.benchmark, aside, samples=samples, size=budget.size)
        aside.rename(path)
    except OSError:
        if not (path / INFO_FILE).exists():  # else another was first, with the same numbers
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Dataset.open(path)


def _refuse_late(path: Path, deadline: float | None) -> None:
    if deadline is not None and time.time() > deadline:
        raise OutOfTime(f"the time limit came before {path} was made; the rest is made next time")


def source_of(cell: Cell, info: Info) -> Source:
    """Say where data comes from; numbers on different sources never share a column."""
    if cell.kind == "speed":
        return "stand-in"
    maker = info.provenance.maker
    if maker == MAKER:
        return "published"
    return "made" if maker == cell.benchmark else "imported"
