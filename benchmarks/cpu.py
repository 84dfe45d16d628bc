"""Measure training steps of the quick recipes on a CPU, beside the published form of ONO.

python benchmarks/cpu.py
python benchmarks/cpu.py darcy/ono-quick --threads 4

Every measurement has a process of its own, with as many threads as it says. The published form is
measured eager as torch runs it by itself, and with the products and the memory of `ono train`; the
recipe as `ono train` runs it, eager and, where there is a C++ compiler, compiled. Of one thread the
CPU time counts; more threads are timed by the wall, so nothing else should run beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPES = ("darcy/ono-quick", "elasticity/ono-quick", "pipe/ono-quick")
FORMS = {
    "published": "paper form",
    "ours": "paper form, run by ono",
    "eager": "eager",
    "compiled": "compiled",
}


def measure(recipe: str, form: str, seconds: float) -> float:
    """Return the samples a second in steps of a form, with the threads this process has."""
    import torch

    from ono.device import keep_freed_memory
    from ono.experiments.speed import paper_speed, step_speed
    from ono.experiments.stand_in import stand_in

    with tempfile.TemporaryDirectory() as folder:
        name = recipe.partition("/")[0]
        data = stand_in(name, Path(folder) / name, samples=48, size="quick").path
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        if form != "published":
            keep_freed_memory()
        if form in ("published", "ours"):
            own = form == "published"
            found = paper_speed(
                recipe, data, device="cpu", seconds=seconds, clock=clock, published=own
            )
        else:
            changes = [f"train.execution={form}"]
            found = step_speed(recipe, data, changes, device="cpu", seconds=seconds, clock=clock)
    assert found is not None
    return found.samples_per_second


def has_compiler() -> bool:
    """Say whether torch.compile can build code for a CPU."""
    named = os.environ.get("CXX")
    return any(shutil.which(name) for name in ([named] if named else ["g++", "clang++"]))


def line(recipe: str, threads: int, found: dict[str, float], commit: str) -> dict[str, Any]:
    """Return a line of the table."""
    cells: dict[str, Any] = {"recipe": recipe, "threads": threads}
    for form, title in FORMS.items():
        cells[f"{title}, samples/s"] = f"{found[form]:.1f}" if form in found else "-"
    for form, title in list(FORMS.items())[1:]:
        times = f"{found[form] / found['published']:.2f}" if form in found else "-"
        cells[f"{title}, × paper form"] = times
    return {**cells, "commit": commit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=5.0, help="to measure each for")
    parser.add_argument("--lines", type=Path, help="write the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.form is not None:
        print(json.dumps(measure(args.recipes[0], args.form, args.seconds)))
        return
    forms = [form for form in FORMS if form != "compiled" or has_compiler()]
    if len(forms) < len(FORMS):
        print("no C++ compiler (CXX, g++ or clang++): compiled steps are left out", file=sys.stderr)
    text = ""
    for recipe in args.recipes:
        for threads in args.threads:
            found = {}
            for form in forms:
                words = [recipe, "--form", form, "--seconds", str(args.seconds)]
                done = subprocess.run(
                    [sys.executable, __file__, *words],
                    env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                    check=True,
                    stdout=subprocess.PIPE,
                )
                found[form] = json.loads(done.stdout)
            told = json.dumps(line(recipe, threads, found, args.commit))
            print(told, flush=True)
            text += told + "\n"
    if args.lines is not None:
        args.lines.write_text(text)


if __name__ == "__main__":
    main()
