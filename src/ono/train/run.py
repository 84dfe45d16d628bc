"""A run directory: who may write to it, and what it records besides checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ono.errors import CheckpointError, InputError, OnoError, RecipeError, RunInUse
from ono.files import replacing, write_text
from ono.train.recipe import Recipe
from ono.train.recipe_files import read_yaml

RECIPE, ENVIRONMENT = "recipe.yaml", "environment.json"
METRICS, EVENTS, RESULT = "metrics.jsonl", "events.jsonl", "result.json"


class Run:
    """A directory that one process at a time may write to.

    `metrics.jsonl` holds only what the recipe decides, so that a resumed run writes the same
    bytes; times and warnings go to `events.jsonl`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.back_at: int | None = None
        self.held = b""

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    @property
    def again(self) -> str:
        """The command that continues the run, for a shell."""
        return shlex.join(("ono", "resume", str(self.path)))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory; the system releases it when the process dies, however it dies.

        A directory made here in which no run began is removed again.
        """
        created = not self.path.exists()
        file = self.path / ".lock"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = file.open("ab+", buffering=0)
        except OSError as error:
            raise InputError(
                f"cannot write to the run directory {self.path}: {error.strerror}; "
                "choose another with --out"
            ) from None
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                handle.seek(0)
                owner = handle.read().decode().strip() or "another process"
                raise RunInUse(
                    f"{self.path} is being written by {owner}; wait for it, or choose another "
                    "directory with --out"
                ) from None
            handle.truncate(0)
            with contextlib.suppress(OSError):  # on a full disk the lock holds, without a name
                handle.write(f"process {os.getpid()} on {platform.node()}".encode())
            try:
                yield
            finally:
                if created and not (self.path / RECIPE).exists():
                    file.unlink(missing_ok=True)
                    with contextlib.suppress(OSError):
                        self.path.rmdir()

    def refuse_taken(self) -> None:
        """Refuse a directory that already holds a run or a dataset."""
        if (self.path / "dataset.json").exists():
            raise InputError(f"{self.path} is a dataset; choose another directory with --out")
        if (self.path / RECIPE).exists():
            raise InputError(
                f"{self.path} already holds a run; continue it with `{self.again}` or "
                "choose another directory with --out"
            )

    def begin(self, recipe: Recipe) -> None:
        """Start a new run; the recipe goes last, as it makes the directory a run."""
        try:
            write_text(self.path / ENVIRONMENT, json.dumps(environment(), indent=1) + "\n")
            write_text(self.path / RECIPE, recipe.to_yaml())
        except OSError as error:
            (self.path / ENVIRONMENT).unlink(missing_ok=True)
            raise OnoError(
                f"the run could not be begun, as {error.filename} was not written: "
                f"{error.strerror}; make room, or choose another directory with --out"
            ) from None

    def recipe(self) -> Recipe:
        """Return the recipe this run was started with."""
        if not (self.path / RECIPE).is_file():
            raise CheckpointError(
                f"no run at {self.path}: it has no {RECIPE}; start one with `ono train`"
            )
        try:
            return Recipe.from_mapping(read_yaml(self.path / RECIPE))
        except RecipeError as error:
            raise CheckpointError(f"{self.path / RECIPE} was changed: {error}") from None

    def record(self, metrics: dict[str, Any]) -> None:
        """Append a line to the metrics; a run that went back holds it until it drops later ones."""
        path, line = self.path / METRICS, f"{json.dumps(metrics)}\n".encode()
        if self.back_at is not None:
            self.held += line
            return
        try:
            with path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OnoError(
                f"{path} could not be written: {error.strerror}; make room, then continue with "
                f"`{self.again}`"
            ) from None

    def metrics_bytes(self) -> int:
        """Return how long the metrics are, for a checkpoint to remember."""
        if self.back_at is not None:
            return self.back_at + len(self.held)
        file = self.path / METRICS
        return file.stat().st_size if file.exists() else 0

    def go_back(self, length: int) -> None:
        """Let the metrics go on after so many bytes; later ones stay until `drop_later`."""
        if (found := self.metrics_bytes()) < length:
            raise CheckpointError(
                f"{self.path / METRICS} has {found} bytes, the checkpoint expects {length}; "
                "restore that file, or continue from an older checkpoint with --from"
            )
        self.back_at, self.held = length, b""

    def drop_later(self) -> None:
        """Drop the result and the metrics from where the run went back to."""
        if self.back_at is None:
            return
        (self.path / RESULT).unlink(missing_ok=True)
        file = self.path / METRICS
        earlier = file.read_bytes()[: self.back_at] if file.exists() else b""
        with replacing(file) as aside:
            aside.write_bytes(earlier + self.held)
        self.back_at, self.held = None, b""

    def event(self, kind: str, **details: Any) -> None:
        """Append a line to the events, with the time."""
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": kind, **details}
        with contextlib.suppress(OSError), (self.path / EVENTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def result(self) -> dict[str, Any] | None:
        """Return the result of a finished run."""
        file = self.path / RESULT
        if not file.is_file():
            return None
        try:
            content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            float(content["test"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{file} cannot be read ({error!r}); delete it, and `{self.again}` writes it again"
            ) from None
        return content


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics."""
    return read_lines(path / METRICS)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines; what a crash made of a line is left out."""
    if not file.is_file():
        return []
    found = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]


def environment() -> dict[str, Any]:
    """Describe the machine and the versions a run uses."""
    packages = {}
    for name in ("ono", "torch", "numpy", "scipy", "pydantic", "safetensors"):
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "packages": packages,
        "commit": commit(),
    }


def commit() -> str | None:
    """Return the commit of ono's source tree, with "+" if changed; None when installed.

    Where the tree was copied without its history, ONO_COMMIT in the environment tells it.
    """
    if told := os.environ.get("ONO_COMMIT"):
        return told
    here = Path(__file__).parents[1]
    try:
        run = [
            subprocess.run(
                ["git", "-C", str(here), *arguments],
                capture_output=True,
                text=True,
                check=True,
                timeout=5,
            ).stdout.strip()
            for arguments in (
                ("rev-parse", "--short=12", "HEAD"),
                ("status", "--porcelain", "."),
                # Fails where ono only lies inside another project's tree.
                ("ls-files", "--error-unmatch", str(Path(__file__))),
            )
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return run[0] + ("+" if run[1] else "")
