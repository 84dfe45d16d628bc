"""Stand-in data and the time of steps on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ono.cli.bench import app
from ono.data.benchmarks import BENCHMARKS, benchmark
from ono.experiments.speed import step_speed
from ono.experiments.stand_in import stand_in

SMALL = ["model.width=16", "model.layers=1", "model.eigen.heads=2", "model.lower.heads=2"]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_stand_in_data_has_the_shapes_of_the_benchmark(name: str, tmp_path: Path) -> None:
    data = stand_in(name, tmp_path / name, samples=8, size="quick")
    plan = benchmark(name).plan("quick", 8, 0)
    assert data.info.mesh == plan.info.mesh
    assert data.info.outputs == plan.info.outputs
    assert data.outputs.shape == (8, *plan.filled["outputs"].shape)


def test_a_step_is_timed(tmp_path: Path) -> None:
    data = stand_in("elasticity", tmp_path / "data", samples=16)
    changes = [*SMALL, "train.batch=2"]
    found = step_speed("elasticity/ono", data.path, changes, device="cpu", seconds=0.1)
    assert (found.batch, found.form, found.peak_bytes) == (2, "eager", None)
    assert 0.1 < found.milliseconds < 1e4
    assert found.samples_per_second == pytest.approx(2000 / found.milliseconds)


def test_the_command_keeps_lines_and_goes_on_after_a_refusal(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    words = ["speed", "elasticity/fno", "elasticity/ono", "--samples", "16", "--seconds", "0.1"]
    words += ["--device", "cpu", "--lines", str(lines)]
    for change in SMALL:
        words += ["--set", change]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.exception
    assert "elasticity/fno" in result.output
    (line,) = map(json.loads, lines.read_text().splitlines())
    assert line["recipe"] == "elasticity/ono"
    assert line["parameters"] > 0
