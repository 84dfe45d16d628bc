"""Make each benchmark at its quick size, train its quick recipe on a CPU, and report the errors.

OMP_NUM_THREADS=2 python benchmarks/quick.py
OMP_NUM_THREADS=2 python benchmarks/quick.py airfoil pipe train.epochs=40
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


def mean_predictor(recipe: Recipe) -> float:
    """Return the test error of answering with the mean of the training targets."""
    parts = cut(Dataset.open(recipe.data.path), recipe)
    device = torch.device("cpu")
    train, test = (
        (b.target for b in in_order(load(p, device), 32)) for p in (parts.train, parts.test)
    )
    mean = torch.cat(list(train)).mean(0)
    targets = torch.cat(list(test))
    return float(relative_l2(mean.expand_as(targets), targets).mean())


def measure(name: str, folder: Path, changes: list[str], commit: str) -> dict[str, Any]:
    """Make and train one benchmark; return its line of the table."""
    began = time.perf_counter()
    data = make(benchmark(name), folder / name, size="quick", device="cpu")
    made = time.perf_counter() - began
    paths = [f"data.path={data.path}", "train.device=cpu"]
    recipe = Recipe.load(f"{name}/ono-quick", [*paths, *changes])
    result = fit(recipe, folder / f"{name}-run")
    return {
        "benchmark": name,
        "samples": data.info.samples,
        "made in s": round(made, 1),
        "recipe": f"{name}/ono-quick",
        "changes": " ".join(changes),
        "epochs": recipe.train.epochs,
        "trained in s": round(result.seconds, 1),
        "test error": round(result.test, 4),
        "mean predictor": round(mean_predictor(recipe), 4),
        "device": describe_device("cpu"),
        "commit": commit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("words", nargs="*", help="benchmarks (default: all) and key=value changes")
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    names = [word for word in args.words if "=" not in word] or list(BENCHMARKS)
    changes = [word for word in args.words if "=" in word]
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            line = measure(name, Path(folder), changes, args.commit)
        keep(line, args.lines)


if __name__ == "__main__":
    main()
