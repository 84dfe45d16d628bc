"""Compare all operators: test errors after a short fixed budget, and the cost of their steps.

python benchmarks/peers.py errors                  quick Darcy and elasticity, three seeds
python benchmarks/peers.py speed --device cuda     milliseconds and memory at the full shapes

Errors come from the packaged recipes `darcy/MODEL-quick` and `elasticity/MODEL-quick`: the same
data, epochs (of elasticity twice those of the recipe) and batches for all. Results are JSON lines;
`benchmarks/tables.py` makes tables of them. With `--jobs N` so many trainings run side by side.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from lines import keep
from quick import predictors

from ono.data.benchmarks import BENCHMARKS, benchmark
from ono.data.generate import make
from ono.device import choose_device, describe_device
from ono.errors import InputError
from ono.experiments.speed import step_speed
from ono.experiments.stand_in import stand_in
from ono.models.registry import MODELS
from ono.train.loop import fit
from ono.train.recipe import Recipe

# The quick recipe of elasticity is done before those that learn slowly at first have begun.
EPOCHS = {"darcy": 16, "elasticity": 10}


def has_recipe(name: str) -> bool:
    try:
        Recipe.load(name)
    except InputError:
        return False
    return True


def train(task: tuple[str, str, int, str, str]) -> dict[str, Any]:
    """Train one model with one seed; return its error."""
    name, model, seed, folder, device = task
    changes = [f"data.path={folder}/{name}", f"seed={seed}", f"train.device={device}"]
    recipe = Recipe.load(f"{name}/{model}-quick", [*changes, f"train.epochs={EPOCHS[name]}"])
    result = fit(recipe, Path(folder) / f"{name}-{model}-{seed}")
    parameters = json.loads((result.path / "result.json").read_text())["parameters"]
    return {
        "benchmark": name,
        "model": model,
        "seed": seed,
        "epochs": recipe.train.epochs,
        "batch": recipe.train.batch,
        "parameters": parameters,
        "error": result.test,
        "seconds": result.seconds,
    }


def errors(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a line for every benchmark and model: mean and spread over the seeds."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
        waiting = {}
        for name in args.benchmarks:
            make(benchmark(name), folder / name, size="quick", device=args.device)
            for model in args.models:
                if has_recipe(f"{name}/{model}-quick"):
                    waiting[name, model] = [
                        pool.submit(train, (name, model, seed, str(folder), args.device))
                        for seed in range(args.seeds)
                    ]
        for (name, model), answers in waiting.items():
            runs = [answer.result() for answer in answers]
            found = [run["error"] for run in runs]
            mean, _ = predictors(Recipe.load(f"{name}/ono-quick", [f"data.path={folder / name}"]))
            yield {
                "benchmark": name,
                "model": model,
                "parameters": f"{runs[0]['parameters']:,}",
                "epochs": runs[0]["epochs"],
                "seeds": len(found),
                "test error": f"{statistics.mean(found):.4f}",
                "spread": f"{max(found) - min(found):.4f}",
                "mean predictor": f"{mean:.4f}",
                "seconds": round(statistics.mean(run["seconds"] for run in runs), 1),
                "device": describe_device(args.device),
                "commit": args.commit,
            }


def speed(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a line for every full recipe: what a step costs."""
    for name in BENCHMARKS:
        data = stand_in(name, folder / f"{name}-full", samples=args.samples)
        for model in args.models:
            if not has_recipe(f"{name}/{model}"):
                continue
            changes = [f"train.execution={args.execution}", *args.set]
            cost = step_speed(
                f"{name}/{model}", data.path, changes, device=args.device, seconds=args.seconds
            )
            peak = cost.peak_bytes
            yield {
                "benchmark": name,
                "model": model,
                "parameters": f"{cost.parameters:,}",
                "batch": cost.batch,
                "step": f"{cost.form} {cost.precision} {cost.kernels}",
                "ms/step": f"{cost.milliseconds:.2f}",
                "samples/s": f"{cost.samples_per_second:.0f}",
                "peak GiB": "" if peak is None else f"{peak / 2**30:.2f}",
                "device": describe_device(args.device),
                "commit": args.commit,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["errors", "speed"])
    parser.add_argument("--benchmarks", nargs="*", default=list(EPOCHS), help="for errors")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--samples", type=int, default=64, help="of the data that speed is measured on"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="to measure each speed for")
    parser.add_argument("--execution", default="auto")
    parser.add_argument("--set", nargs="*", default=[], help="changes of the recipes, for speed")
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    args.device = choose_device(args.device)
    with tempfile.TemporaryDirectory() as folder:
        for line in (errors if args.what == "errors" else speed)(args, Path(folder)):
            keep(line, args.lines)


if __name__ == "__main__":
    main()
