"""Make a dataset from physics: start, continue after an interruption, or find it already made."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

from ono.data.filling import LOCK_FILE, Filling, Request, tidy
from ono.data.plan import Maker
from ono.data.store import INFO_FILE, REQUEST_FILE, Dataset, explain_os_errors
from ono.device import choose_device
from ono.errors import InputError, RunInUse


def make(
    maker: Maker,
    out: Path,
    *,
    size: str,
    samples: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    batch: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    between: Callable[[], None] | None = None,
) -> Dataset:
    """Make a dataset, continue one that was interrupted, or return one already made.

    The inputs depend on size, samples and seed alone; the outputs also on device and batch, within
    the solver's tolerance. `progress(done, total)` is called at the start and after each chunk;
    `between()` as soon as a chunk is solved. What they raise ends the making, and what is solved is
    kept for the next call.
    """
    if batch is not None and batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    if seed < 0:
        raise InputError(f"seed must not be negative, got {seed}")
    plan = maker.plan(size, samples, seed)
    request = Request.of(plan.info)
    if (out / INFO_FILE).exists():
        dataset = Dataset.open(out)
        request.require(Request.of(dataset.info), out)
        with contextlib.suppress(OSError):  # a kill may have come just before the tidying
            tidy(out)
        return dataset
    device = choose_device(device)
    with explain_os_errors(out):
        created = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        with _locked(out, created):
            if not (out / INFO_FILE).exists():  # finished by another since we looked
                usual = plan.batch if device == "cpu" else plan.cuda_batch
                Filling(out, plan, request, progress, between).run(device, batch or usual)
    return Dataset.open(out)


@contextlib.contextmanager
def _locked(out: Path, created: bool) -> Iterator[None]:
    """Hold the directory; the system lets go of it when the process dies.

    Where nothing was begun nothing is left, not even the directory if it was created for this.
    """
    with (out / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunInUse(
                f"{out} is being filled by another process; wait for it or give another --out"
            ) from None
        try:
            yield
        finally:
            if not ((out / REQUEST_FILE).exists() or (out / INFO_FILE).exists()):
                (out / LOCK_FILE).unlink(missing_ok=True)
                if created:
                    with contextlib.suppress(OSError):
                        out.rmdir()
