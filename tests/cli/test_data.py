from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ono.cli.data import app
from ono.data.store import Channel, Dataset, Info, Mesh, Provenance, write_dataset
from ono.errors import DataError, InputError

runner = CliRunner()


def test_the_command_line_loads_nothing_heavy() -> None:
    code = """
import sys, typer
before = set(sys.modules)
import ono.cli.data
heavy = {"torch", "numpy", "matplotlib", "rich", "pydantic"} & (set(sys.modules) - before)
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_list_names_every_size() -> None:
    result = runner.invoke(app, ["list"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for text in ("darcy", "quick", "full", "600 / 100 / 100", "1000 / 100 / 200", "not subsampled"):
        assert text in result.output


def test_make_then_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [
        "make",
        "darcy",
        "--samples",
        "8",
        "--device",
        "cpu",
        "--batch",
        "2",
        "--seed",
        "3",
    ]
    first = runner.invoke(app, arguments)
    assert first.exit_code == 0
    assert first.stdout.startswith("made data/darcy-quick: 8 samples, 0 redrawn, sha256 ")
    told = first.stderr.splitlines()
    assert told == [f"making darcy: {n} of 8" for n in (0, 2, 4, 6, 8)]
    dataset = Dataset.open("data/darcy-quick", verify=True)
    assert dataset.info.provenance.seed == 3
    again = runner.invoke(app, arguments)
    assert again.stdout.startswith("already made data/darcy-quick")
    result = runner.invoke(app, ["check", "data/darcy-quick", "--verify"])
    assert result.exit_code == 0
    assert "0 fatal, 0 to note" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["dracy"], "did you mean darcy"),
        (["darcy", "--size", "ful"], "did you mean full"),
        (["darcy", "--samples", "1"], "at least 3"),
        (["darcy", "--device", "tpu"], "auto, cpu, cuda"),
    ],
)
def test_make_refuses_what_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["make", *arguments])
    assert isinstance(result.exception, InputError)
    assert complaint in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def write(path: Path, *, poison: bool) -> None:
    random = np.random.default_rng(0)
    outputs = random.random((6, 16, 1), np.float32)
    if poison:
        outputs[3, 2] = np.nan
    info = Info(
        name="case",
        task="steady",
        mesh=Mesh(kind="grid", dim=2, shape=(4, 4), shared=True),
        inputs=(Channel(name="force", unit="N"),),
        outputs=(Channel(name="pressure", unit="Pa"),),
        samples=6,
        splits={"train": (0, 4), "validation": (4, 5), "test": (5, 6)},
        provenance=Provenance(maker="hand", note="[a note]"),
    )
    axis = np.linspace(0, 1, 4, dtype=np.float32)
    coords = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(16, 2)
    inputs = random.random((6, 16, 1), np.float32)
    write_dataset(path, info, {"coords": coords, "inputs": inputs, "outputs": outputs})


def test_check_leaves_with_2_when_something_is_fatal(tmp_path: Path) -> None:
    write(tmp_path, poison=True)
    result = runner.invoke(app, ["check", str(tmp_path)])
    assert result.exit_code == 2
    assert "fatal: outputs: 1 values are not finite in 1 samples: 3" in result.stdout


def test_check_verify_reads_the_hashes(tmp_path: Path) -> None:
    write(tmp_path, poison=False)
    file = tmp_path / "inputs.npy"
    before, content = file.stat(), bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    assert isinstance(runner.invoke(app, ["check", str(tmp_path)]).exception, DataError)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert runner.invoke(app, ["check", str(tmp_path)]).exit_code == 0
    result = runner.invoke(app, ["check", str(tmp_path), "--verify"])
    assert isinstance(result.exception, DataError)


def test_show_draws_and_describes(tmp_path: Path) -> None:
    write(tmp_path / "d", poison=False)
    picture = tmp_path / "pictures" / "p.png"
    result = runner.invoke(
        app, ["show", str(tmp_path / "d"), "--out", str(picture)], env={"COLUMNS": "120"}
    )
    assert result.exit_code == 0, result.exception
    for text in ("force [N]", "pressure [Pa]", "train 4", "grid 4 x 4", "[a note]"):
        assert text in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    result = runner.invoke(app, ["show", str(tmp_path / "d"), "--output", "presure"])
    assert isinstance(result.exception, DataError)
    assert "did you mean pressure" in str(result.exception)


def test_show_draws_in_no_other_file_than_a_picture(tmp_path: Path) -> None:
    write(tmp_path, poison=False)
    file = tmp_path / "outputs.npy"
    before = file.read_bytes()
    result = runner.invoke(app, ["show", str(tmp_path), "--out", str(file)])
    assert isinstance(result.exception, InputError)
    assert f"{file} is no .png file" in str(result.exception)
    assert "end --out in .png" in str(result.exception)
    assert file.read_bytes() == before
    assert (
        runner.invoke(app, ["show", str(tmp_path), "--out", str(tmp_path / "P.PNG")]).exit_code == 0
    )


def test_check_finds_sources_that_were_cut_short(tmp_path: Path) -> None:
    write(tmp_path, poison=False)
    sources = tmp_path / "sources.json"
    sources.write_text('{"coordinates": [0, 1], "folder": "f", "rows": []}')
    assert runner.invoke(app, ["check", str(tmp_path)]).exit_code == 0
    sources.write_text('{"coordinates": [0, 1], "fol')
    result = runner.invoke(app, ["check", str(tmp_path), "--verify"])
    assert result.exit_code == 2
    assert f"fatal: sources: {sources} is damaged: Invalid JSON" in result.stdout
    assert "import the mesh files again" in result.stdout
