"""Write named arrays in the format a file name asks for: `.npy`, `.npz`, `.mat` or HDF5."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ono.data.info import Array
from ono.data.store import INFO_FILE, explain_os_errors
from ono.errors import InputError
from ono.files import replacing

FORMATS = (".npy", ".npz", ".mat", ".h5", ".hdf5")


def refuse_unwritable(path: Path, names: Sequence[str]) -> None:
    """Refuse a format that is not known, or that cannot hold arrays of these names."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{path} names no known format; end it in {', '.join(FORMATS)}")
    if suffix == ".npy" and len(names) > 1:
        raise InputError(
            f"{path} holds one array, but there are {len(names)} to write ({', '.join(names)}); "
            "end it in .npz, .mat or .h5"
        )
    places = [_place(name, suffix) for name in names]
    for k, (name, place) in enumerate(zip(names, places, strict=True)):
        for other, there in zip(names[:k], places, strict=False):
            shorter = min(len(place), len(there))
            if place[:shorter] == there[:shorter]:
                raise InputError(
                    f"{path} cannot hold both {other!r} and {name!r}: they would overwrite each "
                    "other; end it in .npz, or give the channels other names"
                )


def refuse_overwriting(out: Path, read: Sequence[Path]) -> None:
    """Refuse to write over a file that is read, or into a dataset directory."""
    for path in read:
        if out.is_file() and path.is_file() and out.samefile(path):
            raise InputError(
                f"{out} is a file to predict from, and would be overwritten; choose another --out"
            )
    for folder in (out, out.parent):
        if (folder / INFO_FILE).is_file():
            raise InputError(
                f"{folder} is a dataset, which {out} would change; choose an --out that lies "
                "elsewhere"
            )


def renamed_in(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Return which arrays have another name in a file of this format, and which.

    >>> renamed_in(Path("p.mat"), ["pressure", "velocity x"]), renamed_in(Path("p.npz"), ["a b"])
    ({'velocity x': 'velocity_x'}, {})
    """
    if path.suffix.lower() != ".mat":
        return {}
    return {name: plain for name in names if (plain := _matlab_name(name)) != name}


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays by name; the file is complete or absent.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "made.npz"
    >>> write_arrays(path, {"u": np.ones(3)})
    >>> np.load(path)["u"].tolist()
    [1.0, 1.0, 1.0]
    """
    refuse_unwritable(path, tuple(arrays))
    content = io.BytesIO()
    match path.suffix.lower():
        case ".npy":
            np.save(content, next(iter(arrays.values())), allow_pickle=False)
        case ".npz":
            # np.savez takes names as keywords, so that none could be called `file`.
            with zipfile.ZipFile(content, "w") as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)
        case ".mat":
            from scipy.io import savemat

            named = {_matlab_name(name): array for name, array in arrays.items()}
            savemat(content, named)  # type: ignore[arg-type]
        case _:
            import h5py

            with h5py.File(content, "w") as file:
                for name, array in arrays.items():
                    file[name] = array
    # Written by Python rather than by a library that does not say why a write failed.
    with explain_os_errors(path), replacing(path) as aside:
        aside.write_bytes(content.getbuffer())


def _place(name: str, suffix: str) -> tuple[str, ...]:
    """Return the path of an array inside a file: in HDF5 a slash begins a group."""
    if suffix in (".h5", ".hdf5"):
        return tuple(part for part in name.split("/") if part not in ("", "."))
    return (_matlab_name(name) if suffix == ".mat" else name,)


def _matlab_name(name: str) -> str:
    """Return a name MATLAB accepts.

    >>> _matlab_name("velocity x"), _matlab_name("2nd")
    ('velocity_x', 'v_2nd')
    """
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
    return plain if plain[:1].isalpha() else f"v_{plain}"
