"""The ledger: one JSON line for each result, added whole and made durable, never changed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from ono.errors import InputError

Status = Literal["complete", "stopped", "failed"]
Source = Literal["made", "published", "imported", "stand-in", "none"]
Key = tuple[str, str, str, int]


class Line(BaseModel, frozen=True, extra="forbid"):
    """What became of a cell with a seed, and everything that decided it.

    `recipe_sha256` and `data_id` are what makes recipe and data the same as others (`identity`);
    `data_sha256` is of the very files. `epochs` counts those done. `values` are what tables show:
    errors by name. `micro_batch` is how many samples a step took at a time, if not all. `shared` is
    how many cells were at most under way at once: it belongs to `seconds`.
    """

    experiment: str
    recipe: str
    changes: tuple[str, ...] = ()
    recipe_sha256: str
    data_id: str = ""
    data_sha256: str = ""
    data: Source
    data_name: str = ""
    seed: int
    budget: str
    status: Status
    reason: str = ""
    epochs: int = 0
    values: dict[str, float] = {}
    by_channel: dict[str, float] = {}
    by_time: tuple[float, ...] = ()
    parameters: int | None = None
    commit: str | None = None
    device: str = ""
    seconds: float = 0.0
    peak_memory_bytes: int | None = None
    micro_batch: int | None = None
    shared: int | None = None
    run: str = ""
    time: str = ""

    @property
    def key(self) -> Key:
        """What is never done twice."""
        return self.experiment, *self.work

    @property
    def work(self) -> tuple[str, str, int]:
        """What was trained or measured, for whichever experiment."""
        return self.recipe_sha256, self.data_id, self.seed

    def result(self) -> dict[str, Any]:
        """Return all that a run repeated elsewhere must give again: no times, no places."""
        return self.model_dump(exclude={"seconds", "shared", "run", "time", "peak_memory_bytes"})


class Ledger:
    """A file of lines that several processes may add to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refuse_unwritable(self) -> None:
        """Refuse a place where no line can be added, before hours go into one."""
        there = self.path
        while not there.exists():
            there = there.parent
        taken = self.path.is_dir() or (there != self.path and not there.is_dir())
        if taken or not os.access(there, os.W_OK):
            raise InputError(
                f"cannot write to the ledger {self.path}: {there} is "
                f"{'no place for it' if taken else 'read-only'}; choose another with --ledger"
            )

    def append(self, line: Line) -> None:
        """Add one line in a single write, and wait until it is on the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = line.model_dump_json().encode() + b"\n"
        with self.path.open("ab+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # A line that a crash cut short must not swallow the next one.
            if (end := file.seek(0, os.SEEK_END)) > 0:
                file.seek(end - 1)
                if file.read(1) != b"\n":
                    text = b"\n" + text
            if file.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(file.fileno())

    def lines(self) -> list[Line]:
        """Return every whole line, oldest first; one cut short by a crash is left out."""
        if not self.path.exists():
            return []
        if self.path.is_dir():
            raise InputError(f"the ledger {self.path} is a directory; give a file with --ledger")
        found = []
        for number, text in enumerate(self.path.read_bytes().split(b"\n"), 1):
            try:
                content = json.loads(text)
            except ValueError:  # not UTF-8 is one as well
                continue
            try:
                found.append(Line.model_validate(content))
            except ValidationError as error:
                fault = error.errors()[0]
                where = ".".join(map(str, fault["loc"])) or "the line"
                raise InputError(
                    f"line {number} of {self.path} is no result ({where}: {fault['msg']}); give "
                    "another file with --ledger, or repair it"
                ) from None
        return found


def latest(lines: Iterable[Line]) -> dict[Key, Line]:
    """Return what holds for each key: a complete line if there is one, else the newest."""
    held: dict[Key, Line] = {}
    for line in lines:
        before = held.get(line.key)
        if before is None or before.status != "complete" or line.status == "complete":
            held[line.key] = line
    return held
