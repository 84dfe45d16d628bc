"""Compare the precisions of training: the same recipes and seeds in fp32, tf32 and bf16.

python benchmarks/precision.py --device cuda --jobs 6

Each training has a process of its own, `--jobs` of them at once. Whatever the precision of the
training, the operator is evaluated in float32 (in TF32 after a tf32 training).
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from lines import keep

from ono.data.benchmarks import benchmark
from ono.data.generate import make
from ono.device import choose_device, describe_device
from ono.train.loop import fit
from ono.train.recipe import Recipe

PRECISIONS = ("fp32", "tf32", "bf16")
RECIPES = ("elasticity/ono", "darcy/ono data.resolution=43")


def train(task: tuple[str, str, list[str], int, str]) -> float:
    """Train once; return the test error."""
    case, precision, changes, seed, folder = task
    source, *own = case.split()
    place = [f"data.path={folder}/{source.partition('/')[0]}", f"seed={seed}"]
    recipe = Recipe.load(source, [*place, f"train.precision={precision}", *own, *changes])
    name = f"{case}-{precision}-{seed}".replace("/", "-").replace(" ", "-")
    return fit(recipe, Path(folder) / "runs" / name).test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES), help="with their changes")
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--size", default="full", help="of the data that is made")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    device = choose_device(args.device)
    changes = [f"train.epochs={args.epochs}", f"train.device={device}"]
    cases = [(case, precision) for case in args.recipes for precision in args.precisions]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for name in {case.partition("/")[0] for case in args.recipes}:
            make(benchmark(name), Path(folder) / name, size=args.size, device=device)
        with ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
            waiting = {
                pool.submit(train, (*case, changes, seed, folder)): case
                for seed in range(args.seeds)
                for case in cases
            }
            found: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
            for answer in as_completed(waiting):
                (case, precision), errors = waiting[answer], found[waiting[answer]]
                errors.append(answer.result())
                print(f"{case} {precision}: {errors[-1]:.5f}", flush=True)
    for (case, precision), errors in found.items():
        line: dict[str, Any] = {
            "recipe": case,
            "precision": precision,
            "epochs": args.epochs,
            "seeds": len(errors),
            "test error": f"{statistics.mean(errors):.5f}",
            "spread": f"{max(errors) - min(errors):.5f}",
            "device": describe_device(device),
            "commit": args.commit,
        }
        keep(line, args.lines)


if __name__ == "__main__":
    main()
