from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from ono.data.sources import SOURCES_FILE, FieldSource, MeshSource, Sources
from ono.errors import DataError
from ono.train.loop import fit

SOURCES = Sources(
    coordinates=(0, 1),
    outputs=(FieldSource(channel="potential", field="u", at="point"),),
    folder="meshes",
    rows=(MeshSource(file="a.vtu", sha256="0", points=81),),
)


def test_sources_read_back_as_written(tmp_path: Path) -> None:
    assert Sources.read(tmp_path) is None
    (tmp_path / SOURCES_FILE).write_text(SOURCES.model_dump_json())
    assert Sources.read(tmp_path) == SOURCES


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (SOURCES.model_dump_json().encode()[:40], r"Invalid JSON: EOF"),
        (b"", "Invalid JSON: EOF"),
        (b"\xff\xfe", "Invalid JSON"),
        (SOURCES.model_dump_json().replace("point", "edge").encode(), "outputs: 0: at: "),
    ],
)
def test_damaged_sources_say_so_and_what_to_do(tmp_path: Path, text: bytes, complaint: str) -> None:
    (tmp_path / SOURCES_FILE).write_bytes(text)
    with pytest.raises(
        DataError, match=rf"sources\.json is damaged: {complaint}.*; import the mesh files again"
    ):
        Sources.read(tmp_path)


def test_sources_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / SOURCES_FILE).mkdir()
    with pytest.raises(DataError, match=r"sources\.json cannot be read: .*directory"):
        Sources.read(tmp_path)


def test_training_on_damaged_sources_leaves_no_run(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    (data.path / SOURCES_FILE).write_text("{")
    with pytest.raises(DataError, match=r"sources\.json is damaged"):
        fit(tiny.recipe(data.path), tmp_path / "run")
    assert not (tmp_path / "run").exists()
