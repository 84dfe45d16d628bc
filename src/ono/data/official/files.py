"""Find the published files of a benchmark by name, and tell whether they are the known ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ono.errors import DataError, InputError
from ono.files import sha256

GIT_BLOB = "git blob SHA-1"


@dataclass(frozen=True, slots=True)
class Known:
    """A published file: its names, newest first, whether it can be missed, and its hash."""

    names: tuple[str, ...]
    needed: bool = True
    sha256: str = ""
    git_blob: str = ""


FILES: dict[str, dict[str, Known]] = {
    "darcy": {
        "first": Known(("piececonst_r421_N1024_smooth1.mat",)),
        "second": Known(("piececonst_r421_N1024_smooth2.mat",)),
    },
    "ns2d": {
        "flow": Known(
            ("NavierStokes_V1e-5_N1200_T20.mat",),
            sha256="b4995d0180ec15f06878e17527fd3e08a8f504bbc059ee025caffad11a9a82c0",
        ),
    },
    "airfoil": {
        "X": Known(("NACA_Cylinder_X.npy",)),
        "Y": Known(("NACA_Cylinder_Y.npy",)),
        "Q": Known(("NACA_Cylinder_Q.npy",)),
        "theta": Known(("NACA_theta.npy",), needed=False),
    },
    "pipe": {
        "X": Known(("Pipe_X.npy",)),
        "Y": Known(("Pipe_Y.npy",)),
        "Q": Known(("Pipe_Q.npy",)),
    },
    "elasticity": {
        "XY": Known(
            ("Random_UnitCell_XY_10.npy",), git_blob="1d79793993b8e6b9b7c70512b50d6dd83d2f1dc9"
        ),
        "sigma": Known(
            ("Random_UnitCell_sigma_10.npy",), git_blob="42b94bff5ee7b53890be937462b10ed439bcb8a4"
        ),
        "theta": Known(
            ("Random_UnitCell_theta_10.npy",),
            needed=False,
            git_blob="d4984da3f79c769fc12ba7b7dceba32a26ed0f92",
        ),
    },
    "plasticity": {
        "forging": Known(
            ("plas_N987_T20.mat", "buri_plas_N987_time.mat"),
            sha256="b58681e7777531b34889da46b506d2f18845c5d7b194859394dfd958cf28178f",
        ),
    },
}


def find(benchmark: str, source: Path) -> dict[str, Path]:
    """Return the files of a benchmark in a directory or below it; the nearest one counts.

    A benchmark that is one file may be given as that file, whatever its name.
    """
    known = FILES[benchmark]
    if source.is_file():
        if len(known) == 1:
            return dict.fromkeys(known, source)
        source = source.parent
    if not source.is_dir():
        raise InputError(f"no directory {source}; give the one that holds {_names(known)}")
    places: dict[str, Path] = {}
    for folder, folders, names in os.walk(source):
        folders.sort()
        for name in names:
            here = Path(folder) / name
            if len(here.parts) < len(places.get(name, here / "further").parts):
                places[name] = here
    found = {
        role: places[name]
        for role, file in known.items()
        for name in reversed(file.names)
        if name in places
    }
    missing = {role: file for role, file in known.items() if file.needed and role not in found}
    if missing:
        some = ", ".join(path.name for path in found.values()) or "none of its files"
        raise DataError(
            f"{source} is not the published {benchmark}: {_names(missing)} missing, {some} found; "
            "download what is missing, unpack archives and keep the names"
        )
    return found


def _names(files: Mapping[str, Known]) -> str:
    return ", ".join(" or ".join(file.names) for file in files.values())


def hashes(benchmark: str, found: Mapping[str, Path]) -> tuple[dict[str, str], list[str]]:
    """Return the SHA-256 of every file, and a warning for each that is not the known one."""
    digests, warnings = {}, []
    for role, path in found.items():
        known = FILES[benchmark][role]
        digests[path.name] = sha256(path)
        pairs = [("SHA-256", known.sha256, digests[path.name])]
        if known.git_blob:
            pairs.append((GIT_BLOB, known.git_blob, git_blob(path)))
        warnings += [
            f"{path.name} is not the known published file: {kind} {got}, expected {expected}"
            for kind, expected, got in pairs
            if expected and got != expected
        ]
    return digests, warnings


def git_blob(path: Path) -> str:
    """Return the name git gives to a file's content: SHA-1 of "blob <size>", a zero byte, it."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
