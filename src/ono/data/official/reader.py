"""Read the published files of a benchmark into a dataset."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ono.data.benchmarks import BENCHMARKS
from ono.data.info import ARRAYS, Array, ArrayName, Provenance, Scalar
from ono.data.official.files import FILES, find, hashes
from ono.data.official.forging import Pairing, open_plasticity
from ono.data.official.grids import open_darcy, open_navier_stokes
from ono.data.official.meshes import open_airfoil, open_elasticity, open_pipe
from ono.data.official.published import Published
from ono.data.official.rows import Choice, choose, count_warnings
from ono.data.plan import Plan
from ono.data.row_files import RowFile
from ono.data.store import (
    INFO_FILE,
    REQUEST_FILE,
    Dataset,
    explain_os_errors,
    save_array,
    write_info,
)
from ono.errors import DataError, InputError, OnoError, nearest
from ono.files import naming, replacing

BLOCK_BYTES = 1 << 27  # read and written at a time
MAKER = "published files"

Opener: TypeAlias = Callable[[Mapping[str, Path], ExitStack], Published]


def read_official(
    benchmark: str,
    source: Path,
    out: Path,
    *,
    pairing: Pairing = "by-x",
    validation: int | None = None,
    warnings: list[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Store the published files in `source` as the dataset `out`, laid out as the maker's.

    Train and test rows are as published; `ono.data.official.rows` says where `validation` samples
    come from and how many by default. Doubts, such as an unknown hash, are appended to `warnings`
    and kept in the provenance. `pairing` is for plasticity alone, see `open_plasticity`.
    """
    if benchmark not in FILES:
        raise InputError(f"no benchmark is called {benchmark!r}; {nearest(benchmark, FILES)}")
    if pairing != "by-x" and benchmark != "plasticity":
        raise InputError(f"pairing {pairing!r} is for plasticity, {benchmark} has no die")
    openers: dict[str, Opener] = {
        "darcy": open_darcy,
        "ns2d": open_navier_stokes,
        "airfoil": open_airfoil,
        "pipe": open_pipe,
        "elasticity": open_elasticity,
        "plasticity": open_plasticity(pairing),
    }
    _require_free(out)
    files = find(benchmark, source)
    with ExitStack() as stack:
        published = openers[benchmark](files, stack)
        choice = choose(benchmark, published.counts, validation)
        digests, doubts = hashes(benchmark, files)
        names = [path.name for path in files.values()]
        doubts += [*count_warnings(benchmark, published.counts, names), *published.warnings]
        if warnings is not None:
            warnings += doubts
        plan = BENCHMARKS[benchmark].plan("full", None, 0)
        info = plan.info.model_copy(
            update={
                "samples": max(stop for _, stop in choice.splits.values()),
                "splits": choice.splits,
                "provenance": _provenance(published, choice, digests, doubts),
            }
        )
        with explain_os_errors(out), _taken_back(out):
            _write(out, replace(plan, info=info), published, choice, progress)
    return Dataset.open(out)


@contextlib.contextmanager
def _taken_back(out: Path) -> Iterator[None]:
    """Leave a place that was free as it was if it cannot be filled."""
    created = not out.exists()
    try:
        yield
    except BaseException:
        for name in ARRAYS:
            (out / f"{name}.npy").unlink(missing_ok=True)
        if created:
            with contextlib.suppress(OSError):
                out.rmdir()
        raise


def _require_free(out: Path) -> None:
    """Raise unless `out` is a new place; what a killed reading left there is removed."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another place")
    names = {file.name for file in out.iterdir()} if out.exists() else set()
    for marker in (INFO_FILE, REQUEST_FILE):
        if marker in names:
            raise DataError(f"{out} already holds {marker}; choose another directory")
    leftovers = {f".{name}.npy" for name in ARRAYS}
    leftovers = {n for n in names if n.endswith(".tmp") and n.startswith(tuple(leftovers))}
    if strange := sorted(names - leftovers):
        raise DataError(f"{out} is not empty, it holds {strange[0]}; choose another directory")
    for name in leftovers:
        (out / name).unlink()


def _provenance(
    published: Published, choice: Choice, digests: Mapping[str, str], doubts: list[str]
) -> Provenance:
    settings: dict[str, Scalar] = {
        **published.settings,
        **{f"{split} samples": words for split, words in choice.words().items()},
        **{f"sha256 of {name}": digest for name, digest in digests.items()},
    }
    if len(published.counts) > 1:
        settings["samples"] = "counted through " + ", ".join(digests)
    return Provenance(
        maker=MAKER,
        size="full",
        note="; ".join(("as published", *(f"warning: {doubt}" for doubt in doubts))),
        settings=settings,
        versions={name: version(name) for name in ("ono", "numpy", "scipy", "h5py")},
    )


def _write(
    out: Path,
    plan: Plan,
    published: Published,
    choice: Choice,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Fill array files under other names, rename them, then write `dataset.json`."""
    info = plan.info
    filled = {name: form for name, form in plan.filled.items() if name not in published.absent}
    fixed: dict[ArrayName, Array] = dict(plan.fixed)
    if not info.inputs:
        fixed["inputs"] = np.zeros((info.samples, *fixed["inputs"].shape[1:]), "<f4")
    row = sum(math.prod(form.shape) * np.dtype(form.dtype).itemsize for form in filled.values())
    out.mkdir(parents=True, exist_ok=True)
    need, free = row * info.samples, shutil.disk_usage(out).free
    if need > free:
        raise OnoError(
            f"{info.samples} samples need {need / 1e9:.3g} GB in {out}, {free / 1e9:.3g} GB are "
            "free; make room or choose another place"
        )
    with ExitStack() as stack:
        targets = {}
        for name, form in filled.items():
            aside = stack.enter_context(replacing(out / f"{name}.npy"))
            shape = (info.samples, *form.shape)
            with naming(aside):
                np.lib.format.open_memmap(aside, "w+", np.dtype(form.dtype), shape)
            targets[name] = RowFile.open(aside)
        tell = progress or (lambda done, total: None)
        done = 0
        tell(done, info.samples)
        for part in choice.ranges(max(1, BLOCK_BYTES // row)):
            arrays = published.read(part.start, part.stop)
            rows = range(done, done + len(part))
            for name, form in filled.items():
                values = arrays[name].reshape(len(part), *form.shape)
                targets[name].write(rows, values.astype(form.dtype))
            done = rows.stop
            tell(done, info.samples)
    for name, array in fixed.items():
        save_array(out / f"{name}.npy", array)
    write_info(out, info, [*fixed, *filled])
