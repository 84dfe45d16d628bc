"""Measure the memory of training steps and of evaluations on many points, and what saving costs.

OMP_NUM_THREADS=1 python benchmarks/memory.py steps        a step of darcy/ono, with each option
OMP_NUM_THREADS=1 python benchmarks/memory.py streaming    darcy/ono on up to a million points
OMP_NUM_THREADS=1 python benchmarks/memory.py errors       darcy/ono-quick with options that cost

Every measurement has a process of its own. On a CPU memory is the highest resident set above what
was there before, on a GPU (`--device cuda`) what torch had allocated at most. Lines go to
`benchmarks/results/memory*.jsonl` with `--lines`; `benchmarks/tables.py` makes tables of them.

The C library keeps much of what is freed, in pieces that depend on chance: on a CPU large blocks
are given back as soon as they are free.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ono.data.benchmarks import benchmark
from ono.data.generate import make
from ono.data.store import Dataset
from ono.device import choose_device, describe_device, matmul_precision
from ono.evaluate.operator import Operator
from ono.evaluate.resolution import at_points
from ono.experiments.inference import noise, untrained
from ono.experiments.speed import recipe_on, runner_of
from ono.experiments.stand_in import stand_in
from ono.train.execution import Epoch
from ono.train.loop import fit
from ono.train.prepare import cut
from ono.train.recipe import Recipe

LIGHTER = ("model.lower.width=64", "model.lower.layers=4")
STEPS = (
    "",
    "train.precision=bf16",
    "train.micro_batch=1",
    "train.recompute=true",
    "train.recompute=true train.micro_batch=1",
    *LIGHTER,
    " ".join(LIGHTER),
    "data.thin=2",
    "data.resolution=43",
)
CHUNK = 1 << 16
MANY, MILLION = 1 << 17, 1_000_000
STREAMING = (
    ("at once", MANY),
    ("streamed", MANY),
    ("streamed", MILLION),
    ("nothing kept", MANY),
)
ERRORS = (
    "",
    "model.lower.width=32",
    "model.lower.layers=2",
    "model.lower.width=32 model.lower.layers=2",
    "data.thin=2",
    "data.resolution=15",
)
SHORT = ("data.train=256", "train.epochs=8", "train.validate_every=8")
SIDE = 29
GIVE_BACK = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}


class Peak:
    """The highest memory since it was made, above what was there then; in bytes."""

    def __init__(self, where: torch.device) -> None:
        self.where = where
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats(where)
            self.before = torch.cuda.memory_allocated(where)
        else:
            Path("/proc/self/clear_refs").write_text("5")  # forgets the highest resident set
            self.before = self._resident()

    @property
    def bytes(self) -> int:
        now = self._resident()
        if self.where.type == "cuda":
            now = torch.cuda.max_memory_allocated(self.where)
        return now - self.before

    def _resident(self) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        (told,) = (line for line in lines if line.startswith("VmHWM:"))
        return 1024 * int(told.split()[1])


def one_step(where: torch.device, data: Path, options: str) -> dict[str, Any]:
    """Take a step, with everything it makes once: gradients, moments and, on a GPU, a recording."""
    recipe = recipe_on("darcy/ono", data, ["train.precision=tf32", *options.split()])
    runner, epoch = runner_of(recipe, where)
    one = Epoch(epoch.order[: recipe.train.batch], epoch.rates[:1], epoch.times)
    peak = Peak(where)
    with matmul_precision(recipe.train.precision, where):
        list(runner.run(one))
    return {"options": _code(options), "GiB": f"{peak.bytes / 2**30:.2f}", "step": runner.form}


def one_evaluation(where: torch.device, data: Path, options: str) -> dict[str, Any]:
    """Evaluate an operator once."""
    how, _, count = options.rpartition(" ")
    _, operator = untrained("darcy/ono", data, device=str(where))
    domain, values, _ = noise(operator, int(count), 1)
    if how == "at once":
        domain, values = domain.to(where), values.to(where)
    # A first call loads libraries and makes what is made once.
    some, few, _ = noise(operator, 100, 1)
    operator.field(some.to(where), few.to(where))
    peak = Peak(where)
    with torch.no_grad():
        if how == "at once":
            operator(domain, values)
        else:
            operator.stream(domain, values, chunk=CHUNK, keep=how == "streamed")
    return {
        "points taken": how if how == "at once" else f"{how}, in chunks of {CHUNK}",
        "points": domain.points,
        "GiB": f"{peak.bytes / 2**30:.2f}",
        "bytes a point": round(peak.bytes / domain.points / 100) * 100,
    }


def one_training(where: torch.device, data: Path, options: str) -> dict[str, Any]:
    """Train shortly; return the test error at the nodes of 29 × 29."""
    place = [f"data.path={data}", f"train.device={where}", *SHORT]
    recipe = Recipe.load("darcy/ono-quick", [*place, *options.split()])
    told, began = _code(options), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = fit(recipe, Path(folder) / "run")
        error, spent = result.test, time.process_time() - began
        if recipe.data.resolution != SIDE:
            view = cut(Dataset.open(data), recipe).test
            axis = torch.linspace(0, 1, SIDE)
            nodes = torch.cartesian_prod(axis, axis)
            error = at_points(Operator.load(result.path, where), view, nodes).score.mean
            told += f", queried at the nodes of {SIDE} × {SIDE}"
    return {"options": told, "test error": f"{error:.4f}", "CPU seconds": round(spent)}


ONE = {"steps": one_step, "streaming": one_evaluation, "errors": one_training}


def cases(what: str) -> list[str]:
    """Return what is measured, as the one word a process is given."""
    if what == "streaming":
        return [f"{how} {points}" for how, points in STREAMING]
    return list(STEPS if what == "steps" else ERRORS)


def _code(options: str) -> str:
    return f"`{options}`" if options else "as it is"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=list(ONE))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lines", type=Path, help="write the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    device = choose_device(args.device)
    if args.case is not None:
        line = ONE[args.what](torch.device(device), args.data, args.case)
        print(json.dumps({**line, "device": describe_device(device), "commit": args.commit}))
        return
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "darcy"
        if args.what == "errors":
            make(benchmark("darcy"), data, size="quick", device="cpu")
        else:
            stand_in("darcy", data, samples=8)
        for case in cases(args.what):
            words = [args.what, "--device", device, "--commit", args.commit]
            command = [sys.executable, __file__, *words, "--data", str(data), "--case", case]
            environment = None if args.what == "errors" else GIVE_BACK  # which takes time
            done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
            lines.append(done.stdout)
            print(lines[-1].decode(), end="", flush=True)
    if args.lines is not None:
        args.lines.write_bytes(b"".join(lines))


if __name__ == "__main__":
    main()
