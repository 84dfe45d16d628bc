from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
import yaml
from typer.testing import CliRunner

from ono.cli.bench import app
from ono.errors import OutOfMemory
from ono.evaluate.calibrate import is_calibrated
from ono.evaluate.operator import Operator
from ono.experiments.inference import call_speed, noise, untrained
from ono.models.ono import ONO

SMALL = ["model.width=16", "model.layers=2", "model.lower.heads=2", "model.eigen.heads=2"]


def operator_for(data: Path, folder: Path, model: str = "ono") -> Operator:
    content = tiny.content(data)
    content["model"] = tiny.MODEL if model == "ono" else {"name": model}
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content))
    return untrained(str(recipe), data, device="cpu")[1]


def test_the_operator_is_calibrated_and_only_evaluates(tmp_path: Path) -> None:
    operator = operator_for(tiny.dataset(tmp_path / "data").path, tmp_path)
    assert is_calibrated(operator.model)
    assert not operator.training
    assert isinstance(operator.model, ONO)
    assert all(attention.is_folded for attention in operator.model.orthogonal_attentions())


def test_points_are_counted_per_second(tmp_path: Path) -> None:
    operator = operator_for(tiny.dataset(tmp_path / "data").path, tmp_path)
    row = call_speed("tiny", operator, 400, batch=3, seconds=0.5)
    assert (row.points, row.batch, row.chunk, row.peak_bytes) == (400, 3, None, None)
    assert row.calls > 1
    assert row.points_per_second == pytest.approx(1000 * 3 * 400 / row.milliseconds)
    assert call_speed("tiny", operator, 400, chunk=100, seconds=0.05).chunk == 100


def test_noise_has_the_shape_of_the_data(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "grid")
    domain, values, time = noise(operator_for(data.path, tmp_path), 300, batch=2)
    assert domain.shape == (17, 17)
    assert domain.weights is not None
    assert (values.shape, time) == ((2, 289, 1), None)
    cloud = tiny.cloud(tmp_path / "cloud")
    operator = operator_for(cloud.path, tmp_path)
    domain, values, _ = noise(operator, 300, batch=2)
    assert (domain.shape, values.shape) == (None, (2, 300, 1))
    assert float(domain.coords.amax()) <= float(operator.normaliser.coord_span.max()) * 2
    timed = tiny.series(tmp_path / "timed", "timed")
    operator = operator_for(timed.path, tmp_path)
    _, _, moment = noise(operator, 300, batch=2)
    assert moment is not None
    assert moment.shape == (2,)
    assert call_speed("timed", operator, 300, seconds=0.01).points == 289


def test_other_operators_are_measured_too(tmp_path: Path) -> None:
    operator = operator_for(tiny.dataset(tmp_path / "data").path, tmp_path, "fno")
    assert call_speed("fno", operator, 300, seconds=0.01).points == 289


def test_a_lack_of_memory_is_an_error_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = operator_for(tiny.dataset(tmp_path / "data").path, tmp_path)

    def full(*args: object, **options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(operator, "field", full)
    with pytest.raises(OutOfMemory, match="memory ran out: CUDA out of memory; give a chunk"):
        call_speed("tiny", operator, 300)


def test_the_command_writes_a_line_for_each_measurement(tmp_path: Path) -> None:
    sets = [word for change in SMALL for word in ("--set", change)]
    asked = ["--points", "200", "--points", "800", "--batch", "1", "--batch", "3"]
    words = ["inference", "elasticity/ono", *sets, *asked, "--seconds", "0.1", "--device", "cpu"]
    kept = ["--lines", str(tmp_path / "lines.jsonl"), "--commit", "abc"]
    done = CliRunner().invoke(app, [*words, *kept])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    # Three samples of 800 points would be more than the largest sample asked for.
    assert [(line["batch"], line["points"]) for line in lines] == [(1, 200), (1, 800), (3, 200)]
    assert all(line["milliseconds"] > 0 and line["device"].startswith("cpu") for line in lines)
    assert {(line["form"], line["commit"]) for line in lines} == {("eager", "abc")}
