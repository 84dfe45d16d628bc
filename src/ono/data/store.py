"""A dataset on disk: a directory with `dataset.json` and plain `.npy` arrays, never a pickle.

What the arrays mean and which shapes they have is in `ono.data.info`; here they are written so
that a dataset is complete or absent, and read by memory map after their headers were checked.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from ono.data.info import (
    ARRAYS,
    FORMAT,
    SPLITS,
    Array,
    ArrayName,
    Channel,
    FileInfo,
    Info,
    Mesh,
    Provenance,
    Report,
    Split,
    Task,
    layout_problems,
)
from ono.errors import DataError, InputError, OnoError, nearest
from ono.files import replacing, sha256, write_text

__all__ = [
    "ARRAYS",
    "FORMAT",
    "INFO_FILE",
    "REQUEST_FILE",
    "SPLITS",
    "Array",
    "ArrayName",
    "Channel",
    "Dataset",
    "FileInfo",
    "Info",
    "Mesh",
    "Provenance",
    "Report",
    "Split",
    "Task",
    "layout_problems",
    "write_dataset",
]

INFO_FILE = "dataset.json"
REQUEST_FILE = "making.json"
REFUSALS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset opened for reading. Its arrays are read-only memory maps."""

    path: Path
    info: Info = field(repr=False)
    arrays: Mapping[ArrayName, Array] = field(repr=False)

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = False, strict: bool = True) -> Dataset:
        """Open a dataset after comparing every file's size and header with `dataset.json`.

        A file that was written after it is hashed again, with `verify` every file is.
        `strict=False` opens a dataset whose arrays do not fit together, so that `ono.data.check`
        can list what is wrong.
        """
        path = Path(path)
        info = _read_info(path)
        dataset = cls(path, info, {n: _map(path, n, info.files[n]) for n in info.files})
        problems = layout_problems(info, dataset.arrays) if strict else []
        if problems:
            raise DataError(f"{path} is not a valid dataset: {'; '.join(problems)}")
        dataset.verify(info.files if verify else dataset.written_later())
        return dataset

    @property
    def coords(self) -> Array:
        """Points: [points dim] if shared, else [samples points dim], or [total dim]."""
        return self.arrays["coords"]

    @property
    def inputs(self) -> Array:
        """Input values: [samples points channels], or [total channels]."""
        return self.arrays["inputs"]

    @property
    def outputs(self) -> Array:
        """Output values: [samples (time) points channels], or [total (time) channels]."""
        return self.arrays["outputs"]

    @property
    def params(self) -> Array | None:
        """Numbers of a whole sample: [samples channels]."""
        return self.arrays.get("params")

    @property
    def times(self) -> Array | None:
        """When the outputs are: [time]."""
        return self.arrays.get("times")

    @property
    def weights(self) -> Array | None:
        """Quadrature weights: [points], [samples points] or [total]."""
        return self.arrays.get("weights")

    @property
    def offsets(self) -> Array | None:
        """Where each sample of a ragged cloud starts: [samples+1]."""
        return self.arrays.get("offsets")

    def of_sample(self, name: ArrayName, index: int) -> Array:
        """Return what one sample has of an array; coordinates that all share are its own too."""
        array, offsets = self.arrays[name], self.offsets
        if name == "coords" and self.info.mesh.shared:
            return np.asarray(array)
        if offsets is None or name in ("params", "draws"):
            return np.asarray(array[index])
        return np.asarray(array[offsets[index] : offsets[index + 1]])

    def rows(self, split: str) -> range:
        """Return the rows of a split."""
        for name, (start, stop) in self.info.splits.items():
            if name == split:
                return range(start, stop)
        raise DataError(f"{self.path} has no split {split!r}; {nearest(split, self.info.splits)}")

    @property
    def sha256(self) -> str:
        """The hash of the arrays, of what they mean and of how they are split.

        It is the same wherever the files lie and whatever the dataset is called.
        """
        told = self.info.model_dump(mode="json", exclude={"format", "name", "provenance", "report"})
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def summary(self) -> dict[str, str]:
        """Return what a reader wants to know first, as text."""
        info, source = self.info, self.info.provenance
        points = "ragged" if self.offsets is not None else f"{self.coords.shape[-2]} points"
        owner = "shared by all samples" if info.mesh.shared else "one per sample"
        size = " x ".join(map(str, info.mesh.shape)) if info.mesh.shape else points
        sometimes, times = {}, self.times
        if info.params:
            sometimes["params"] = _listed(info.params)
        if times is not None:
            sometimes["times"] = f"{len(times)}, from {times[0]:.4g} to {times[-1]:.4g}"
        return {
            "mesh": f"{info.mesh.kind} {size}, {owner}",
            "inputs": _listed(info.inputs),
            "outputs": _listed(info.outputs),
            **sometimes,
            "splits": ", ".join(f"{k} {stop - start}" for k, (start, stop) in info.splits.items()),
            "made by": f"{source.maker} {source.size}".strip()
            + ("" if source.seed is None else f", seed {source.seed}"),
            "note": source.note,
            "size": f"{sum(file.bytes for file in info.files.values()) / 1e6:.1f} MB",
            "sha256": self.sha256,
        }

    def written_later(self) -> list[ArrayName]:
        """Name the arrays that are newer than `dataset.json`: they were changed, or copied."""
        described = (self.path / INFO_FILE).stat().st_mtime_ns
        files = {name: self.path / f"{name}.npy" for name in self.info.files}
        return [name for name, file in files.items() if file.stat().st_mtime_ns > described]

    def verify(self, names: Iterable[ArrayName] | None = None) -> None:
        """Recompute the hashes of some arrays, or of all; raise naming those that differ."""
        changes = []
        for name in self.info.files if names is None else names:
            file, expected = self.path / f"{name}.npy", self.info.files[name].sha256
            if (actual := sha256(file)) != expected:
                changes.append(
                    f"{file} was changed since it was written: expected sha256 {expected}, got "
                    f"{actual}"
                )
        if changes:
            look = shlex.join(("ono", "data", "check", str(self.path), "--verify"))
            raise DataError(
                f"{'; '.join(changes)}; make or import the data again, or restore what "
                f"`{look}` names"
            )


def write_dataset(
    path: Path,
    info: Info,
    arrays: Mapping[ArrayName, Array],
    *,
    overwrite: bool = False,
    called: Path | None = None,
) -> Dataset:
    """Store arrays held in memory; `info.files` is filled in here.

    `dataset.json` goes last, so an interrupted write leaves no dataset rather than a wrong one.
    Errors call the directory `called`, if that is what it will be.
    """
    if not overwrite:
        for marker in (INFO_FILE, REQUEST_FILE):
            if (path / marker).exists():
                raise DataError(f"{path} already holds {marker}; choose another directory")
    arrays = {n: np.ascontiguousarray(a, a.dtype.newbyteorder("<")) for n, a in arrays.items()}
    if problems := layout_problems(info, arrays):
        raise DataError(f"cannot store these arrays as {path}: {'; '.join(problems)}")
    with explain_os_errors(path, called):
        for stale in (INFO_FILE, REQUEST_FILE, *(f"{name}.npy" for name in ARRAYS)):
            (path / stale).unlink(missing_ok=True)
        for name, array in arrays.items():
            save_array(path / f"{name}.npy", array)
        write_info(path, info, arrays)
    return Dataset.open(path)


def save_array(path: Path, array: Array) -> None:
    """Write one `.npy` file atomically."""
    array = np.ascontiguousarray(array)
    with replacing(path) as aside, aside.open("wb") as file:
        # The numbers are written by Python: NumPy does not say why a write failed.
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)


def write_info(path: Path, info: Info, names: Iterable[ArrayName]) -> None:
    """Describe and hash the array files of a directory and write its `dataset.json`."""

    paths = {name: path / f"{name}.npy" for name in sorted(names)}
    with ThreadPoolExecutor() as pool:
        hashes = list(pool.map(sha256, paths.values()))
    files = {}
    for (name, file), digest in zip(paths.items(), hashes, strict=True):
        array = open_array(file)
        files[name] = FileInfo(
            sha256=digest, bytes=file.stat().st_size, shape=array.shape, dtype=array.dtype.str
        )
    done = info.model_copy(update={"files": files}).model_dump(mode="json")
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in done.items()]
    write_text(path / INFO_FILE, "{\n" + ",\n".join(lines) + "\n}\n")


def open_array(file: Path) -> Array:
    """Map an array read-only; a file that is only a header, which cannot be mapped, is read."""
    empty = file.stat().st_size <= 128
    array: Array = np.load(file, mmap_mode=None if empty else "r", allow_pickle=False)
    array.flags.writeable = False
    return array


@contextlib.contextmanager
def explain_os_errors(path: Path, called: Path | None = None) -> Iterator[None]:
    """Turn a refusal of the file system into an error that names the file, the reason, a way out.

    Files below `path` are named as files below `called`, if that is what it will be.
    """
    try:
        yield
    except OSError as error:
        reason, place = error.strerror or str(error), called or path
        if error.errno in REFUSALS:
            raise InputError(f"cannot write to {place}: {reason}; choose another place") from error
        file = place if error.filename is None else Path(os.fsdecode(error.filename))
        if file.is_relative_to(path):
            file = place / file.relative_to(path)
        way_out = "make room or choose another place" if error.errno in FULL else "solve that"
        raise OnoError(
            f"writing to {file} failed: {reason}; {way_out}, then run the same command again"
        ) from error


def _listed(channels: Iterable[Channel]) -> str:
    return ", ".join(f"{channel.name} [{channel.unit}]" for channel in channels)


def _read_info(path: Path) -> Info:
    file = path / INFO_FILE
    if not path.is_dir():
        seen = "" if path.is_absolute() else f" seen from {Path.cwd()}"
        raise DataError(f"no dataset at {path}: not a directory{seen}; see `ono data make --help`")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(_no_info(path)) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}; make or restore the dataset") from None
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise DataError(
            f"{file} has format {found!r}, this version of ono reads format {FORMAT}; "
            "use the version of ono that wrote it, or make the dataset again"
        )
    try:
        return Info.model_validate(content)
    except ValidationError as error:
        # Unknown keys first: a misspelt one explains the missing one.
        errors = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        faults = [f"{'.'.join(map(str, e['loc'])) or 'dataset'}: {e['msg']}" for e in errors[:3]]
        raise DataError(f"{file} is not valid: {'; '.join(faults)}") from None


def _no_info(path: Path) -> str:
    try:
        request = json.loads((path / REQUEST_FILE).read_text(encoding="utf-8"))
        again = "ono data make {maker} --size {size} --samples {samples} --seed {seed}"
        again = again.format(**request)
    except (OSError, ValueError, LookupError, TypeError):
        return f"{path} holds no {INFO_FILE}: not a dataset, or not completely written"
    return f"{path} is not finished; to continue run `{again} --out {shlex.quote(str(path))}`"


def _map(path: Path, name: ArrayName, expected: FileInfo) -> Array:
    file = path / f"{name}.npy"
    try:
        size = file.stat().st_size
        if size != expected.bytes:
            raise DataError(
                f"{file} has {size} bytes, {INFO_FILE} says {expected.bytes}: "
                "damaged or incomplete; make the dataset again or restore the file"
            )
        array = open_array(file)
    except FileNotFoundError:
        raise DataError(f"{file} is missing; make the dataset again or restore it") from None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} cannot be used: {error}; store plain numbers, pickled objects are never read"
        ) from None
    if array.shape != expected.shape or array.dtype.str != expected.dtype:
        raise DataError(
            f"{file} holds {array.dtype.str} {list(array.shape)}, {INFO_FILE} says "
            f"{expected.dtype} {list(expected.shape)}; make the dataset again or restore it"
        )
    return array
