"""A file is durable before it takes its name, and the name before anything goes on."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ono.files import replacing, write_text


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record what is made durable, with what it holds by then, and what is renamed."""
    made: list[tuple[str, str]] = []
    sync, replace = os.fsync, Path.replace

    def record_sync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            made.append(("directory", ""))
        else:
            made.append(("file", os.pread(handle, 100, 0).decode()))
        sync(handle)

    def record_replace(path: Path, target: Path) -> Path:
        made.append(("name", target.name))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_replace)
    return made


def test_content_name_and_directory_are_made_durable_in_this_order(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    write_text(tmp_path / "note", "new")
    assert calls == [("file", "new"), ("name", "note"), ("directory", "")]
    assert (tmp_path / "note").read_text() == "new"


def test_what_fails_half_way_takes_no_name(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    (tmp_path / "note").write_text("old")

    def fail() -> None:
        with replacing(tmp_path / "note") as aside:
            aside.write_text("ne")
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        fail()
    assert calls == []
    assert (tmp_path / "note").read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["note"]
