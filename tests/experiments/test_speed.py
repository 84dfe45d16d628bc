"""Stand-in data, the time of steps on it, and what that is compared with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from ono.cli.bench import app
from ono.data.benchmarks import BENCHMARKS, benchmark
from ono.data.info import Array
from ono.data.store import Dataset
from ono.errors import DataError
from ono.experiments.budgets import BUDGETS
from ono.experiments.datasets import place_of, provide
from ono.experiments.grid import Cell
from ono.experiments.roofline import Peaks, Work
from ono.experiments.speed import (
    Comparison,
    Speed,
    compare,
    paper_form,
    paper_speed,
    step_speed,
)
from ono.experiments.stand_in import stand_in
from ono.models.ono_config import ONOConfig
from ono.train.execution import Epoch, OneByOne
from ono.train.recipe import Recipe

SMALL = ["model.width=16", "model.layers=1", "model.eigen.heads=2", "model.lower.heads=2"]


def test_made_up_data_that_another_process_put_there_first_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, budget = Cell("darcy/fno", kind="speed"), BUDGETS["smoke"]
    place = place_of(cell, budget, tmp_path)

    def overtaken(name: str, out: Path, **options: Any) -> Dataset:
        stand_in(name, place, **options)
        return stand_in(name, out, **options)

    monkeypatch.setattr("ono.experiments.datasets.stand_in", overtaken)
    found = provide(cell, budget, tmp_path)
    assert found.path == place
    assert [path.name for path in tmp_path.iterdir()] == [place.name]


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


def test_a_batch_that_the_samples_do_not_fill_is_refused(tmp_path: Path) -> None:
    data = stand_in("elasticity", tmp_path / "data", samples=8)
    with pytest.raises(DataError, match="make no batch of 100; take more samples"):
        step_speed("elasticity/ono", data.path, [*SMALL, "train.batch=100"], device="cpu")


def test_products_are_those_of_training_and_of_the_published_form_those_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = stand_in("elasticity", tmp_path / "data", samples=8)
    seen = set()
    run = OneByOne.run

    def watched(self: OneByOne, epoch: Epoch) -> Iterator[Array]:
        for part in run(self, epoch):
            seen.add(torch.get_float32_matmul_precision())
            yield part

    monkeypatch.setattr("ono.device._rounds_nothing", lambda: True)
    monkeypatch.setattr(OneByOne, "run", watched)
    changes = [*SMALL, "train.batch=2", "train.precision=tf32"]
    found = step_speed("elasticity/ono", data.path, changes, device="cpu", seconds=0.1)
    assert (seen, found.precision) == ({"medium"}, "tf32")
    seen.clear()
    paper_speed("elasticity/ono", data.path, changes, device="cpu", seconds=0.1)
    assert seen == {"highest"}
    paper_speed("elasticity/ono", data.path, changes, device="cpu", seconds=0.1, published=False)
    assert seen == {"highest", "medium"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_published_form_has_the_size_of_the_recipe() -> None:
    changes = ["model.layers=3", "model.eigen.functions=5", "train.precision=bf16", "data.thin=2"]
    recipe = Recipe.load("pipe/ono-quick", [*changes, "train.recompute=true"])
    form = paper_form(recipe)
    assert form is not None
    config, paper = form.model.config, ONOConfig.paper()
    assert isinstance(config, ONOConfig)
    size = (config.width, config.layers, config.eigen.functions, config.lower.heads)
    assert size == (64, 3, 5, 4)
    assert config.lower.attention == paper.lower.attention
    assert (config.block, config.octaves, config.eigen.heads) == ("post", 0, 1)
    assert form.data == recipe.data.model_copy(update={"thin": None})
    plain: dict[str, object] = {"precision": "fp32", "execution": "eager", "kernels": "plain"}
    plain |= {"compile": False, "recompute": False}
    assert form.train == recipe.train.model_copy(update=plain)


def test_only_ono_has_a_published_form_to_compare_with(tmp_path: Path) -> None:
    assert paper_form(Recipe.load("darcy/fno")) is None
    data = stand_in("darcy", tmp_path / "data", samples=8, size="quick")
    assert paper_speed("darcy/fno-quick", data.path, device="cpu") is None


def test_a_comparison_says_how_far_from_the_floor_and_from_the_paper() -> None:
    fast = Speed("a/b", 10, 4, "captured", "fused", "bf16", 2.0, 9.0, None)
    slow = Speed("a/b", 10, 4, "eager", "plain", "fp32", 30.0, 1.0, None)
    found = Comparison(fast, Work(1e9, 1e6), Peaks(1e12, 1e10), slow)
    assert found.floor_milliseconds == pytest.approx(1.0)
    assert found.share == pytest.approx(0.5)
    assert found.speedup == pytest.approx(15.0)
    assert found.line()["paper_milliseconds"] == 30.0
    assert Comparison(fast, Work(1e9, 1e6), Peaks(1e12, 1e10)).speedup is None


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # in torch's own compiler
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_convolutions_have_all_their_memory(tmp_path: Path) -> None:
    """On 94 x 94 nodes torch 2.11 would pad a gradient and read behind its end.

    In processes without the hook of jaxtyping, which cannot be compiled.
    """
    data = stand_in("darcy", tmp_path / "data", samples=32)
    script = """
import sys
from pathlib import Path
import torch
from ono.experiments.speed import recipe_on, runner_of
recipe = recipe_on("darcy/u-fno", Path(sys.argv[1]), [f"train.compile={sys.argv[2]}"])
runner, epoch = runner_of(recipe, torch.device("cuda"))
for _ in range(3):
    assert list(runner.run(epoch))
print(runner.step.tally.take_mean_loss())
"""
    losses = [
        float(
            subprocess.run(
                [sys.executable, "-c", script, str(data.path), compiled],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for compiled in ("true", "false")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_measured_with_its_memory(tmp_path: Path) -> None:
    data = stand_in("elasticity", tmp_path / "data", samples=16)
    changes = [*SMALL, "train.batch=2"]
    found = compare("elasticity/ono", data.path, changes, device="cuda", seconds=0.1)
    assert found.speed.form == "captured"
    assert found.speed.peak_bytes is not None
    assert found.speed.peak_bytes > 0
    assert 0 < found.share < 1


def test_the_command_keeps_lines_and_goes_on_after_a_refusal(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    words = ["speed", "elasticity/fno", "elasticity/ono", "--samples", "16", "--seconds", "0.1"]
    words += ["--device", "cpu", "--lines", str(lines), "--commit", "abc"]
    for change in SMALL:
        words += ["--set", change]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.exception
    assert "elasticity/fno" in result.output
    (line,) = map(json.loads, lines.read_text().splitlines())
    assert line["recipe"] == "elasticity/ono"
    assert line["parameters"] > 0
    assert line["commit"] == "abc"
    floor, taken = line["floor_milliseconds"], line["milliseconds"]
    assert line["share_of_floor"] == pytest.approx(floor / taken)
    assert line["speedup"] == pytest.approx(line["paper_milliseconds"] / taken)
    assert "% of floor" in " ".join(result.output.split())


def test_nothing_measured_is_an_error_and_no_table() -> None:
    words = ["speed", "elasticity/onoo", "--samples", "8", "--device", "cpu"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "did you mean elasticity/ono" in result.output
    assert "ms/step" not in result.output


def test_the_published_form_is_measured_once_for_all_forms_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, calls = tmp_path / "lines.jsonl", []

    def counted(*given: object, **options: object) -> Speed:
        calls.append(given[0])
        return Speed("paper", 1, 4, "eager", "plain", "fp32", 1e9, 1.0, None)

    monkeypatch.setattr("ono.experiments.measurements.paper_speed", counted)
    sets = [word for change in SMALL for word in ("--set", change)]
    words = ["speed", "elasticity/ono-quick", *sets, "--execution", "eager", "--execution", "auto"]
    words += ["--samples", "8", "--seconds", "0.1", "--device", "cpu", "--lines", str(lines)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert calls == ["elasticity/ono-quick"]
    assert CliRunner().invoke(app, [*words, "--no-baseline"]).exit_code == 0
    assert calls == ["elasticity/ono-quick"]
    told = [json.loads(line)["speedup"] for line in lines.read_text().splitlines()]
    assert [speedup is None for speedup in told] == [False, False, True, True]
    assert "commit" not in json.loads(lines.read_text().splitlines()[0])
