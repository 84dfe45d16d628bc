"""Time a whole training as a user sees it: from `ono train` to the end of `ono report`.

python benchmarks/training.py elasticity/ono train.precision=bf16 --device cuda

Data is made before the clock starts, and a training of one epoch compiles the kernels.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lines import keep

from ono.data.benchmarks import benchmark
from ono.data.generate import make
from ono.device import choose_device, describe_device
from ono.train.recipe import Recipe


def ono(*words: str) -> None:
    """Run a command of ono, as a user would."""
    subprocess.run([sys.executable, "-m", "ono", *words], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe")
    parser.add_argument("changes", nargs="*", help="key=value")
    parser.add_argument("--size", default="full", help="of the data that is made")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    device, name = choose_device(args.device), args.recipe.partition("/")[0]
    with tempfile.TemporaryDirectory() as folder:
        data, run = Path(folder) / name, Path(folder) / "run"
        make(benchmark(name), data, size=args.size, device=device)
        changes = [*args.changes, f"data.path={data}", f"train.device={device}"]
        ono("train", args.recipe, *changes, "train.epochs=1", "--out", f"{folder}/first")
        began = time.perf_counter()
        ono("train", args.recipe, *changes, "--out", str(run))
        ono("report", str(run))
        spent = time.perf_counter() - began
        result = json.loads((run / "result.json").read_text())
    line = {
        "recipe": args.recipe,
        "changes": " ".join(args.changes),
        "epochs": Recipe.load(args.recipe, args.changes).train.epochs,
        "trained in s": round(result["seconds"]),
        "start to report s": round(spent, 1),
        "test error": round(result["test"], 4),
        "device": describe_device(device),
        "commit": args.commit,
    }
    keep(line, args.lines)


if __name__ == "__main__":
    main()
