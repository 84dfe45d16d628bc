"""Every benchmark trains and evaluates through its packaged recipes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ono.data.benchmarks import BENCHMARKS, Benchmark
from ono.data.generate import make
from ono.report.html import write_report
from ono.train.evaluations import Evaluator
from ono.train.loop import fit
from ono.train.prepare import cut
from ono.train.recipe import Recipe
from ono.train.recipe_files import packaged_recipes

SMALL = ("model.width=16", "model.layers=2", "train.epochs=1", "train.validate_every=1")
SMALL_HEADS = ("model.lower.heads=2", "model.eigen.heads=2", "model.eigen.functions=4")


def small(name: str) -> Benchmark:
    """Return the benchmark; plasticity on fewer nodes, as it takes thousands of steps."""
    chosen = BENCHMARKS[name]
    if name != "plasticity":
        return chosen
    size = replace(chosen.sizes["quick"], settings={"nodes_x": 11, "nodes_y": 4})
    return replace(chosen, sizes={"quick": size})


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_quick_recipe_of_a_benchmark_runs_from_data_to_report(
    name: str, tmp_path: Path
) -> None:
    data = make(small(name), tmp_path / "data", size="quick", samples=6, device="cpu")
    changes = (f"data.path={data.path}", "train.device=cpu", *SMALL, *SMALL_HEADS)
    recipe = Recipe.load(f"{name}/ono-quick", changes)
    result = fit(recipe, tmp_path / "run")
    assert np.isfinite(result.test)
    row = Evaluator(tmp_path / "run").on_grid(None)
    assert row.mean == pytest.approx(result.test, rel=1e-4)
    assert write_report(tmp_path / "run").stat().st_size > 10_000


@pytest.mark.parametrize("name", BENCHMARKS)
def test_recipes_fit_the_plan_of_their_benchmark(name: str) -> None:
    assert {f"{name}/ono", f"{name}/ono-quick"} <= set(packaged_recipes())
    for size, recipe in (("full", f"{name}/ono"), ("quick", f"{name}/ono-quick")):
        plan, loaded = BENCHMARKS[name].plan(size, None, 0), Recipe.load(recipe)
        assert loaded.name == recipe
        assert loaded.data.path == f"data/{name}-{size}"
        known = {channel.name for channel in plan.info.outputs}
        assert set(loaded.data.outputs or ()) <= known
        assert (loaded.rollout is not None) == (plan.info.task == "rollout")


def test_the_protocol_of_navier_stokes_is_ten_frames_in_and_ten_out(tmp_path: Path) -> None:
    data = make(BENCHMARKS["ns2d"], tmp_path / "data", size="quick", samples=3, device="cpu")
    parts = cut(data, Recipe.load("ns2d/ono", [f"data.path={data.path}"]))
    assert parts.test.window is not None
    assert (parts.test.window.history, parts.test.window.steps) == (10, 10)
    assert parts.test.times is not None
    assert parts.test.times.tolist() == list(range(11, 21))
