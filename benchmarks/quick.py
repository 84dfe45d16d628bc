"""Make benchmarks at their quick size, train quick recipes on a CPU, and report the errors.

OMP_NUM_THREADS=2 python benchmarks/quick.py
OMP_NUM_THREADS=2 python benchmarks/quick.py airfoil pipe train.epochs=40
OMP_NUM_THREADS=2 python benchmarks/quick.py airfoil/geo-fno train.epochs=40 model.modes=[12,5]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lines import keep

from ono.data.batches import in_order, load
from ono.data.benchmarks import BENCHMARKS, benchmark
from ono.data.generate import make
from ono.data.store import Dataset
from ono.device import describe_device
from ono.evaluate.metrics import relative_l2
from ono.train.loop import fit
from ono.train.prepare import cut
from ono.train.recipe import Recipe


def predictors(recipe: Recipe) -> tuple[float, float]:
    """Return the test errors of answering with the mean training target, and with one number.

    The first knows nodes by their place in the mesh, which operators on points are not told. The
    second has a number for each channel.
    """
    parts = cut(Dataset.open(recipe.data.path), recipe)
    device = torch.device("cpu")
    train, test = (
        (b.target for b in in_order(load(p, device), 32)) for p in (parts.train, parts.test)
    )
    mean = torch.cat(list(train)).mean(0)
    targets = torch.cat(list(test))
    constant = mean.flatten(0, -2).mean(0)
    field, number = (
        float(relative_l2(answer.expand_as(targets), targets).mean()) for answer in (mean, constant)
    )
    return field, number


def measure(asked: str, folder: Path, changes: list[str], commit: str) -> dict[str, Any]:
    """Make the data of a benchmark and train one recipe; return the line of the table."""
    name, slash, _ = asked.partition("/")
    chosen = asked if slash else f"{name}/ono-quick"
    began = time.perf_counter()
    data = make(benchmark(name), folder / name, size="quick", device="cpu")
    made = time.perf_counter() - began
    paths = [f"data.path={data.path}", "train.device=cpu"]
    recipe = Recipe.load(chosen, [*paths, *changes])
    with tempfile.TemporaryDirectory() as run:
        result = fit(recipe, Path(run) / "run")
    field, number = predictors(recipe)
    return {
        "benchmark": name,
        "samples": data.info.samples,
        "made in s": round(made, 1),
        "recipe": chosen,
        "changes": " ".join(changes),
        "epochs": recipe.train.epochs,
        "trained in s": round(result.seconds, 1),
        "test error": round(result.test, 4),
        "mean predictor": round(field, 4),
        "constant": round(number, 4),
        "device": describe_device("cpu"),
        "commit": commit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "words", nargs="*", help="benchmarks or recipes (default: all quick) and key=value changes"
    )
    parser.add_argument("--data", type=Path, help="keep the data here, and use what is here")
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    names = [word for word in args.words if "=" not in word] or list(BENCHMARKS)
    changes = [word for word in args.words if "=" in word]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            keep(measure(name, args.data or Path(folder), changes, args.commit), args.lines)


if __name__ == "__main__":
    main()
