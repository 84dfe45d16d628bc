"""Arrays in files that others wrote: `.npy`, `.npz`, MATLAB `.mat` old and new, HDF5.

The content of a file decides what it is, not its name. Axes come as the author wrote them: MATLAB
7.3 stores them reversed, so a file that begins with "MATLAB 7.3 MAT-file", or a variable that
carries the attribute `MATLAB_class`, is turned round; any other HDF5 file is taken as it is.
Only real numbers are read, and never a pickle.
"""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from ono.data.info import Array
from ono.data.store import open_array
from ono.errors import DataError, nearest

SUFFIXES = (".npy", ".npz", ".mat", ".h5", ".hdf5")
MATLAB_73 = b"MATLAB 7.3 MAT-file"
MATLAB_NUMBERS = re.compile("double|single|logical|u?int(8|16|32|64)")

Format = Literal["npy", "npz", "mat", "hdf5"]


@runtime_checkable
class RowSource(Protocol):
    """An array of which a range of rows can be read at a time."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, axes as the author wrote them."""

    def __getitem__(self, rows: slice) -> Array: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """What a file holds under one key; `fault` says why it is not an array of real numbers."""

    shape: tuple[int, ...]
    fault: str = ""


def parse_source(text: str) -> tuple[Path, str | None]:
    """Split `file:key` into a path and a key; a file that exists may have colons in its name.

    >>> parse_source("runs/flow.mat:u")
    (PosixPath('runs/flow.mat'), 'u')
    >>> parse_source("flow.h5:group/u")
    (PosixPath('flow.h5'), 'group/u')
    >>> parse_source("flow.npy")
    (PosixPath('flow.npy'), None)
    """
    if Path(text).is_file():
        return Path(text), None
    colons = [match.start() for match in re.finditer(":", text)]
    existing = [k for k in colons if Path(text[:k]).is_file()]
    likely = [k for k in colons if text[:k].lower().endswith(SUFFIXES)]
    for k in existing + likely:
        return Path(text[:k]), text[k + 1 :] or None
    return Path(text), None


def keys(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the arrays of real numbers in a file and their shapes; `.npy` has the one key ""."""
    entries = _entries(path, _format(path))
    return {key: entry.shape for key, entry in entries.items() if not entry.fault}


def read_array(path: Path, key: str | None = None) -> Array:
    """Return one array of a file, axes as the author wrote them; `.npy` is memory-mapped.

    Without `key` the file must hold only one.
    """
    with open_rows(path, key) as rows:
        return rows if isinstance(rows, np.ndarray) else rows[:]


@contextlib.contextmanager
def open_rows(path: Path, key: str | None = None) -> Iterator[RowSource]:
    """Yield an array whose rows can be read in ranges, so that HDF5 need not fit in memory."""
    kind = _format(path)
    key = _choose(path, key, _entries(path, kind))
    if kind != "hdf5":
        yield _load(path, kind, key)
        return
    import h5py

    with _explain(path):
        file = h5py.File(path, "r")
    with file:
        yield _Hdf5Rows(path, file[key], reverse=_is_matlab(path, file[key]))


@dataclass(frozen=True, slots=True)
class _Hdf5Rows:
    path: Path
    data: Any
    reverse: bool

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.data.shape
        return shape[::-1] if self.reverse else shape

    def __getitem__(self, rows: slice) -> Array:
        with _explain(self.path):
            if not self.data.shape:
                return np.asarray(self.data[()])
            part = self.data[..., rows] if self.reverse else self.data[rows]
        return np.asarray(part.T if self.reverse else part)


def _format(path: Path) -> Format:
    try:
        with path.open("rb") as file:
            start = file.read(128)
    except FileNotFoundError:
        raise DataError(f"no file {path}; check the path, or unpack the archive first") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if start.startswith(b"\x93NUMPY"):
        return "npy"
    if start.startswith(b"PK"):
        return "npz"
    if start.startswith(MATLAB_73) or _is_hdf5(path):
        return "hdf5"
    if start.startswith(b"MATLAB 5.0") or (start and path.suffix.lower() == ".mat"):
        return "mat"
    what = "is empty" if not start else "is none of .npy, .npz, .mat and .h5"
    what = "is a pickle, which could run any code" if start.startswith(b"\x80") else what
    raise DataError(f"{path} {what}; save plain numbers with numpy.save or as HDF5")


def _is_hdf5(path: Path) -> bool:
    import h5py

    return bool(h5py.is_hdf5(path))


def _entries(path: Path, kind: Format) -> dict[str, Entry]:
    with _explain(path):
        if kind == "npy":
            with path.open("rb") as file:
                return {"": _npy_entry(file)}
        if kind == "npz":
            with zipfile.ZipFile(path) as archive:
                found = {}
                for name in archive.namelist():
                    with archive.open(name) as member:
                        found[name.removesuffix(".npy")] = _npy_entry(member)
                return found
        return _mat_entries(path) if kind == "mat" else _hdf5_entries(path)


def _npy_entry(file: Any) -> Entry:
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(np.lib.format.read_magic(file))
    if header is None:  # version 3 exists for the field names of records
        return Entry((), "records")
    shape, _, dtype = header(file)
    return Entry(shape, _fault(dtype))


def _mat_entries(path: Path) -> dict[str, Entry]:
    from scipy.io import whosmat

    return {
        name: Entry(tuple(shape), "" if MATLAB_NUMBERS.fullmatch(kind) else f"a {kind} array")
        for name, shape, kind in whosmat(path)
    }


def _hdf5_entries(path: Path) -> dict[str, Entry]:
    import h5py

    found: dict[str, Entry] = {}

    def visit(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset) or name.startswith("#"):  # "#refs#": parts of cells
            return
        fault = _fault(item.dtype)
        kind = item.attrs.get("MATLAB_class", b"")
        kind = kind.decode() if isinstance(kind, bytes) else str(kind)
        if kind and not MATLAB_NUMBERS.fullmatch(kind):
            fault = f"a {kind} array"
        if item.shape is None or "MATLAB_empty" in item.attrs:
            fault = "nothing"
        shape = item.shape or ()
        found[name] = Entry(shape[::-1] if _is_matlab(path, item) else shape, fault)

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return found


def _is_matlab(path: Path, data: Any) -> bool:
    with path.open("rb") as file:
        return file.read(len(MATLAB_73)) == MATLAB_73 or "MATLAB_class" in data.attrs


def _fault(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "fiub":
        return ""
    if dtype.kind == "c" or dtype.names == ("real", "imag"):
        return "complex numbers; store the real and the imaginary part as two arrays"
    return {"O": "objects", "V": "records", "U": "text", "S": "text"}.get(dtype.kind, str(dtype))


def _choose(path: Path, key: str | None, entries: dict[str, Entry]) -> str:
    good = [name for name, entry in entries.items() if not entry.fault]
    key = "" if key is None and "" in entries else key
    if key is None:
        if len(good) != 1:
            faults = "; ".join(f"{name}: {entry.fault}" for name, entry in entries.items())
            held = f"{', '.join(sorted(good))}; name one as {path}:KEY" if good else "no numbers"
            held += f" ({faults})" if not good and faults else ""
            raise DataError(f"{path} holds {held}")
        return good[0]
    if key not in entries:
        if "" in entries:
            raise DataError(f"{path} holds one array without a name; leave out :{key}")
        held = ", ".join(sorted(good)) or "no numbers"
        hint = f"; {nearest(key, good)}" if good else ""
        raise DataError(f"{path} has no {key!r}, it holds {held}{hint}")
    if entries[key].fault:
        where = f"{path}:{key}" if key else str(path)
        raise DataError(f"{where} holds {entries[key].fault}; only real numbers are read")
    return key


def _load(path: Path, kind: Format, key: str) -> Array:
    with _explain(path):
        if kind == "npy":
            return open_array(path)
        if kind == "npz":
            with np.load(path, allow_pickle=False) as archive:
                array: Array = archive[key]
        else:
            from scipy.io import loadmat

            array = loadmat(path, variable_names=[key])[key]
    if fault := _fault(array.dtype):
        raise DataError(f"{path}:{key} holds {fault}; only real numbers are read")
    return array


@contextlib.contextmanager
def _explain(path: Path) -> Iterator[None]:
    """Turn what a reader throws at a damaged file into an error that names the file."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # a parser may meet anything in a damaged file
        raise DataError(
            f"{path} cannot be read: {error}; it is damaged, cut short or of another kind: "
            "download or copy it again and compare its size"
        ) from error
