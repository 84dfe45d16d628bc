from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import ono
from ono.data.store import Dataset
from ono.data.view import View
from ono.errors import CheckpointError
from ono.evaluate.card import Card, find_operator
from ono.evaluate.operator import Operator
from ono.train import checkpoint as checkpoints


class Canary:
    """Runs a command when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.file}",)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    path = tmp_path_factory.mktemp("checkpoint") / "data"
    data: Dataset = tiny.dataset(path)
    config = tiny.recipe(path).model.config
    hashes = {"recipe_sha256": "0", "version": ono.__version__}
    view = View(data, data.rows("train"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Operator(Card.of(view, model="ono", config=config, seed=0, **hashes))


def write(directory: Path, operator: Operator, *steps: int) -> list[Path]:
    return [checkpoints.save(directory, n, operator, {"step": n}) for n in steps]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def content(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


def seal(checkpoint: Path) -> None:
    """Make the manifest agree with files that were changed, as an attacker would."""
    file = checkpoint / "manifest.json"
    manifest = json.loads(file.read_text())
    for name, entry in manifest["files"].items():
        data = (checkpoint / name).read_bytes()
        entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    file.write_text(json.dumps(manifest))


def test_what_was_saved_is_read(tmp_path: Path, operator: Operator) -> None:
    state = {"step": 4, "rng": torch.get_rng_state(), "deep": {"a": torch.arange(3)}, "x": 0.1}
    saved = checkpoints.save(tmp_path, 4, operator, state)
    checkpoints.check(saved)
    assert saved.name == "step-000000004"
    assert names(tmp_path) == [saved.name]
    assert names(saved) == ["manifest.json", "model.json", "model.safetensors", "state.pt"]
    read = checkpoints.read_state(saved)
    assert (read["step"], read["x"]) == (4, 0.1)
    assert torch.equal(read["rng"], state["rng"])  # type: ignore[arg-type]
    assert torch.equal(read["deep"]["a"], torch.arange(3))
    again = Operator.load(saved).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in operator.state_dict().items())


def test_the_same_step_is_replaced(tmp_path: Path, operator: Operator) -> None:
    checkpoints.save(tmp_path, 4, operator, {"x": 1})
    saved = checkpoints.save(tmp_path, 4, operator, {"x": 2})
    checkpoints.check(saved)
    assert checkpoints.read_state(saved)["x"] == 2


def test_purge_keeps_the_newest_and_the_best(tmp_path: Path, operator: Operator) -> None:
    saved = write(tmp_path, operator, 1, 2, 3, 4, 5)
    checkpoints.mark_best(saved[1], 0.25)
    (tmp_path / ".step-000000009.77.tmp").mkdir()
    (tmp_path / ".best.json.77.tmp").write_text("{")
    checkpoints.purge(tmp_path, keep=2)
    left = [path.name for path in (saved[1], saved[3], saved[4])]
    assert names(tmp_path) == sorted(["best.json", *left])
    assert checkpoints.best(tmp_path) == saved[1]
    assert json.loads((tmp_path / "best.json").read_text())["validation"] == 0.25


def test_there_may_be_no_best(tmp_path: Path, operator: Operator) -> None:
    assert checkpoints.best(tmp_path) is None
    checkpoints.mark_best(write(tmp_path, operator, 1)[0], 0.5)
    shutil.rmtree(tmp_path / "step-000000001")
    assert checkpoints.best(tmp_path) is None
    (tmp_path / "best.json").write_text("{")
    assert checkpoints.best(tmp_path) is None


def test_rewind_drops_what_is_newer(tmp_path: Path, operator: Operator) -> None:
    write(tmp_path, operator, 3, 20, 100)
    checkpoints.rewind(tmp_path, 20)
    assert names(tmp_path) == ["step-000000003", "step-000000020"]


def test_rewind_leaves_what_was_written_since(tmp_path: Path, operator: Operator) -> None:
    saved = write(tmp_path, operator, 3, 20, 100)
    checkpoints.rewind(tmp_path, 3, keep=saved[1])
    assert names(tmp_path) == ["step-000000003", "step-000000020"]


def cut(checkpoint: Path) -> tuple[Path, str, str]:
    file = checkpoint / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    return file, f"{len(data)} bytes", f"got {len(data) // 2}"


def flip(checkpoint: Path) -> tuple[Path, str, str]:
    file = checkpoint / "model.safetensors"
    data = bytearray(file.read_bytes())
    before = hashlib.sha256(data).hexdigest()
    data[-100] ^= 1
    file.write_bytes(data)
    return file, before, f"got {hashlib.sha256(data).hexdigest()}"


def lose(checkpoint: Path) -> tuple[Path, str, str]:
    (checkpoint / "state.pt").unlink()
    return checkpoint / "state.pt", "bytes", "got None"


def forget(checkpoint: Path) -> tuple[Path, str, str]:
    (checkpoint / "manifest.json").unlink()
    return checkpoint, "manifest.json", "not a complete checkpoint"


def garble(checkpoint: Path) -> tuple[Path, str, str]:
    (checkpoint / "manifest.json").write_text('{"format": 1, "files": ')
    return checkpoint / "manifest.json", "cannot be read", ""


def renumber(checkpoint: Path) -> tuple[Path, str, str]:
    file = checkpoint / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
    return checkpoint, "format 99", "reads format 1"


DAMAGES = [cut, flip, lose, forget, garble, renumber]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_named(tmp_path: Path, operator: Operator, damage: Any) -> None:
    (saved,) = write(tmp_path, operator, 1)
    file, expected, actual = damage(saved)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.check(saved)
    for part in (str(file), expected, actual):
        assert part in str(caught.value)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_whole_checkpoint_is_taken(
    tmp_path: Path, operator: Operator, damage: Any
) -> None:
    saved = write(tmp_path, operator, 1, 2, 3)
    assert checkpoints.latest(tmp_path) == (saved[2], [])
    file, _, _ = damage(saved[2])
    chosen, warnings = checkpoints.latest(tmp_path)
    assert chosen == saved[1]
    assert len(warnings) == 1
    assert str(file) in warnings[0]


def test_nothing_whole_is_an_error(tmp_path: Path, operator: Operator) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint was written yet"):
        checkpoints.latest(tmp_path)
    flip(write(tmp_path, operator, 1)[0])
    with pytest.raises(CheckpointError, match=r"is damaged: expected sha256.*; start a new run"):
        checkpoints.latest(tmp_path)


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_operator_is_not_loaded(tmp_path: Path, operator: Operator, damage: Any) -> None:
    (saved,) = write(tmp_path, operator, 1)
    file, _, _ = damage(saved)
    with pytest.raises(CheckpointError) as caught:
        Operator.load(saved)
    assert str(file) in str(caught.value)


def test_a_checkpoint_of_a_run_without_its_manifest_is_none(
    tmp_path: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while it was deleted leaves it so: what its files hold then is not known."""
    directory = tmp_path / "checkpoints"
    older, best, newest = write(directory, operator, 1, 2, 3)
    checkpoints.mark_best(best, 0.5)
    forget(best)
    forget(newest)
    assert checkpoints.best(directory) is None
    assert find_operator(tmp_path) == older
    with pytest.raises(CheckpointError, match=r"has no manifest\.json: not a complete checkpoint"):
        Operator.load(best)
    monkeypatch.chdir(best)
    with pytest.raises(CheckpointError, match=r"use another checkpoint of the run"):
        Operator.load(Path())
    forget(older)
    with pytest.raises(CheckpointError, match=r"no trained operator at"):
        Operator.load(tmp_path)


def test_an_exported_operator_needs_no_manifest(tmp_path: Path, operator: Operator) -> None:
    operator.save(tmp_path / "step-by-step")
    Operator.load(tmp_path / "step-by-step")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_training_state_is_refused(
    tmp_path: Path, operator: Operator, protocol: int
) -> None:
    (saved,) = write(tmp_path, operator, 1)
    canary = tmp_path / "canary"
    (saved / "state.pt").write_bytes(pickle.dumps(Canary(canary), protocol))
    seal(saved)
    checkpoints.check(saved)
    with pytest.raises(CheckpointError, match=r"state\.pt was refused"):
        checkpoints.read_state(saved)
    assert not canary.exists()


def test_a_hostile_pickle_in_torch_format_is_refused(tmp_path: Path, operator: Operator) -> None:
    (saved,) = write(tmp_path, operator, 1)
    canary = tmp_path / "canary"
    torch.save({"step": 1, "x": Canary(canary)}, saved / "state.pt")
    with pytest.raises(CheckpointError, match=r"state\.pt was refused"):
        checkpoints.read_state(saved)
    assert not canary.exists()


def test_a_pickle_called_safetensors_is_refused(tmp_path: Path, operator: Operator) -> None:
    (saved,) = write(tmp_path, operator, 1)
    canary = tmp_path / "canary"
    (saved / "model.safetensors").write_bytes(pickle.dumps(Canary(canary)))
    seal(saved)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be loaded"):
        Operator.load(saved)
    torch.save({"x": Canary(canary)}, saved / "model.safetensors")
    seal(saved)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be loaded"):
        Operator.load(saved)
    assert not canary.exists()


@pytest.mark.parametrize("data", [b"", b"not a state", b"PK\x03\x04 half a zip"])
def test_a_state_that_is_no_state_is_refused(
    tmp_path: Path, operator: Operator, data: bytes
) -> None:
    (saved,) = write(tmp_path, operator, 1)
    (saved / "state.pt").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"state\.pt was refused"):
        checkpoints.read_state(saved)


def test_a_state_of_another_kind_is_refused(tmp_path: Path, operator: Operator) -> None:
    (saved,) = write(tmp_path, operator, 1)
    torch.save([1, 2], saved / "state.pt")
    with pytest.raises(CheckpointError, match="does not hold a training state"):
        checkpoints.read_state(saved)


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("call", ["torch.save", "os.fsync", "pathlib.Path.rename"])
def test_a_failing_save_leaves_the_one_before(
    tmp_path: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch, call: str, step: int
) -> None:
    write(tmp_path, operator, 0, 1)
    before = content(tmp_path)
    monkeypatch.setattr(call, full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(tmp_path, step, operator, {"x": 2})
    monkeypatch.undo()
    after = content(tmp_path)
    if call == "pathlib.Path.rename" and step == 1:
        # The place had been cleared for the new one; what came before that stays.
        before = {name: data for name, data in before.items() if name.startswith("step-000000000")}
    assert after == before
    assert not any(name.startswith(".") for name in names(tmp_path))
    assert checkpoints.latest(tmp_path)[1] == []


def test_a_checkpoint_takes_its_name_last_and_the_name_is_made_durable(
    tmp_path: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, rename, replace = os.fsync, Path.rename, Path.replace

    def record_sync(handle: int) -> None:
        calls.append(f"sync {os.fstat(handle).st_ino}")
        sync(handle)

    def record_rename(path: Path, target: Path) -> Path:
        calls.append(f"rename to {target.name}")
        return rename(path, target)

    def record_replace(path: Path, target: Path) -> Path:
        calls.append(f"rename to {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "rename", record_rename)
    monkeypatch.setattr(Path, "replace", record_replace)
    (saved,) = write(tmp_path, operator, 1)
    inner, directory = saved.stat().st_ino, tmp_path.stat().st_ino
    manifest = (saved / "manifest.json").stat().st_ino
    assert calls[-5:] == [
        f"sync {manifest}",
        "rename to manifest.json",
        f"sync {inner}",
        "rename to step-000000001",
        f"sync {directory}",
    ]
    for name in ("model.safetensors", "model.json", "state.pt"):
        assert f"sync {(saved / name).stat().st_ino}" in calls


def test_what_cannot_be_stored_leaves_the_one_before(tmp_path: Path, operator: Operator) -> None:
    write(tmp_path, operator, 1)
    before = content(tmp_path)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        checkpoints.save(tmp_path, 2, operator, {"x": lambda: None})
    assert content(tmp_path) == before
    assert names(tmp_path) == ["step-000000001"]
