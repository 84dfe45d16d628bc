"""Measure how many more steps a GPU takes when several trainings share it.

python benchmarks/packing.py elasticity/ono darcy/fno --at-once 1 2 4

Trainings are processes of their own. All begin to step at the same moment and go on for the same
time; their steps a second are added up and compared with those of one alone, to be held against the
limit in `ono.experiments.costs`. Start NVIDIA's Multi-Process Service first to measure with it
(`--note mps` writes that down).
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import torch
from lines import keep

from ono.device import choose_device, describe_device, matmul_precision
from ono.experiments.speed import recipe_on, runner_of
from ono.experiments.stand_in import stand_in


def step(
    recipe: str, data: str, device: str, seconds: float, barrier: Barrier, answers: Queue[float]
) -> None:
    """Take steps for so long, together with the others; answer how many in a second."""
    try:
        answers.put(rate(recipe, data, device, seconds, barrier))
    except BaseException:
        barrier.abort()  # nobody waits for this one
        raise


def rate(recipe: str, data: str, device: str, seconds: float, barrier: Barrier) -> float:
    """Return the steps a second, from when all are ready."""
    chosen = recipe_on(recipe, Path(data), [])
    where = torch.device(device)
    runner, epoch = runner_of(chosen, where)
    with matmul_precision(chosen.train.precision, where):
        for _ in runner.run(epoch):
            pass
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        barrier.wait()
        began, steps = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            for _ in runner.run(epoch):
                steps += 1
            if where.type == "cuda":
                torch.cuda.synchronize(where)
        return steps / (time.monotonic() - began)


def together(recipe: str, data: Path, count: int, device: str, seconds: float) -> float:
    """Return the steps a second of so many trainings in all."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    answers: Queue[float] = context.Queue()
    processes = [
        context.Process(target=step, args=(recipe, str(data), device, seconds, barrier, answers))
        for _ in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"one of {count} trainings of {recipe} failed")
    return sum(answers.get() for _ in processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--note", default="")
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    device = choose_device(args.device)
    with tempfile.TemporaryDirectory() as folder:
        for recipe in args.recipes:
            name = recipe.partition("/")[0]
            data = Path(folder) / name
            if not data.exists():
                stand_in(name, data, samples=args.samples)
            alone = None
            for count in args.at_once:
                all_steps = together(recipe, data, count, device, args.seconds)
                alone = alone or all_steps / count
                line = {
                    "recipe": recipe,
                    "at_once": count,
                    "steps_per_second": round(all_steps, 1),
                    "times_alone": round(all_steps / alone, 2),
                    "note": args.note,
                    "device": describe_device(device),
                    "commit": args.commit,
                }
                keep(line, args.lines)


if __name__ == "__main__":
    main()
