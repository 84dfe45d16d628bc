"""Checkpoints that are whole or absent.

A checkpoint is a directory with the operator, the training state (loadable with
`weights_only=True`) and a manifest of hashes. It is written under a temporary name, synced,
described by its manifest, and renamed. A directory without a valid manifest is not a checkpoint.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ono.errors import CheckpointError
from ono.evaluate.card import BEST, MANIFEST, best_checkpoint
from ono.evaluate.operator import Operator
from ono.files import replacing, sha256, sync_directory, write_text

FORMAT = 1
STATE_FILE = "state.pt"

TrainingState = dict[str, Any]


def save(directory: Path, step: int, operator: Operator, state: TrainingState) -> Path:
    """Write a checkpoint and return its directory; a failure leaves earlier ones untouched."""
    final = directory / _name(step)
    aside = directory / f".{final.name}.{os.getpid()}.tmp"
    directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        operator.save(aside)
        # Written by Python rather than by torch, so that a full disk is an OSError that says so.
        torch.save(state, content := io.BytesIO())
        with replacing(aside / STATE_FILE) as file:
            file.write_bytes(content.getbuffer())
        table = {
            file.name: {"sha256": sha256(file), "bytes": file.stat().st_size}
            for file in sorted(aside.iterdir())
        }
        manifest = {"format": FORMAT, "step": step, "files": table}
        write_text(aside / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        if final.exists():
            _discard(final)
        aside.rename(final)
        sync_directory(directory)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


def check(checkpoint: Path) -> None:
    """Raise a CheckpointError naming what is wrong, unless the checkpoint is whole."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        files: Mapping[str, Mapping[str, Any]] = manifest["files"]
        version = manifest["format"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{checkpoint} has no {MANIFEST}: not a complete checkpoint"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{checkpoint / MANIFEST} cannot be read: {error}") from None
    if version != FORMAT:
        raise CheckpointError(
            f"{checkpoint} has format {version!r}, this version of ono reads format {FORMAT}"
        )
    for name, expected in files.items():
        file = checkpoint / name
        size = file.stat().st_size if file.is_file() else None
        if size != expected["bytes"]:
            raise CheckpointError(
                f"{file} is damaged: expected {expected['bytes']} bytes, got {size}"
            )
        if (actual := sha256(file)) != expected["sha256"]:
            raise CheckpointError(
                f"{file} is damaged: expected sha256 {expected['sha256']}, got {actual}"
            )


def read_state(checkpoint: Path) -> TrainingState:
    """Read the training state; anything that would need unpickling code is refused."""
    try:
        state = torch.load(checkpoint / STATE_FILE, map_location="cpu", weights_only=True)
    except Exception as error:  # a file made to do harm can raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{checkpoint / STATE_FILE} was refused: {reason}") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{checkpoint / STATE_FILE} does not hold a training state")
    return state


def saved(directory: Path) -> list[Path]:
    """Return the checkpoint directories, oldest first, whole or not."""
    return sorted(path for path in directory.glob("step-*") if path.is_dir())


def latest(directory: Path) -> tuple[Path, list[str]]:
    """Return the newest whole checkpoint, and what is wrong with newer ones."""
    warnings: list[str] = []
    for candidate in reversed(saved(directory)):
        try:
            check(candidate)
        except CheckpointError as error:
            warnings.append(str(error))
        else:
            return candidate, warnings
    found = "\n".join(warnings) or "no checkpoint was written yet"
    raise CheckpointError(
        f"nothing to resume in {directory}: {found}; start a new run with `ono train`"
    )


def mark_best(checkpoint: Path, validation: float) -> None:
    """Point at the checkpoint with the lowest validation error."""
    content = {"checkpoint": checkpoint.name, "validation": validation}
    write_text(checkpoint.parent / BEST, json.dumps(content) + "\n")


def best(directory: Path) -> Path | None:
    """Return the checkpoint with the lowest validation error, if one was marked."""
    return best_checkpoint(directory)


def later(directory: Path, step: int) -> list[Path]:
    """Return the checkpoints of later steps, newest first."""
    return [path for path in reversed(saved(directory)) if path.name > _name(step)]


def rewind(directory: Path, step: int, keep: Path | None = None) -> None:
    """Delete what is newer than a step, but for what a run has written since it went back there.

    The newest goes first: what a crash leaves is a run that ended earlier.
    """
    for newer in later(directory, step):
        if newer != keep:
            _discard(newer)


def purge(directory: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and the best; leftovers of a crash go too."""
    chosen = best(directory)
    for old in saved(directory)[:-keep]:
        if old != chosen:
            _discard(old)
    for leftover in directory.glob(".*.tmp"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def step_of(checkpoint: Path) -> int:
    """Return the step that a checkpoint is of.

    >>> step_of(Path("checkpoints") / "step-000000012")
    12
    """
    return int(checkpoint.name.removeprefix("step-"))


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _discard(checkpoint: Path) -> None:
    """Delete a checkpoint; its manifest goes first, so that what is left is not one."""
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)
