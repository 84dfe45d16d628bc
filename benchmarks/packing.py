"""Measure how many more steps a GPU takes when several trainings share it.

python benchmarks/packing.py elasticity/ono darcy/fno --at-once 1 2 4

Trainings are processes of their own. Of all that are ready so many begin to step at the same moment
and go on for the same time; their steps a second are added up and compared with those of one alone,
to be held against the limit in `ono.experiments.costs`. Start NVIDIA's Multi-Process Service first
to measure with it (`--note mps` writes that down).
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

import torch
from lines import keep

from ono.device import choose_device, describe_device, matmul_precision
from ono.experiments.speed import recipe_on, runner_of
from ono.experiments.stand_in import stand_in
from ono.train.execution import Captured, Epoch, OneByOne


class Together(NamedTuple):
    """What all processes of a recipe know of each other."""

    counts: Sequence[int]
    seconds: float
    barrier: Barrier
    answers: Queue[tuple[int, float]]


def trained(recipe: str, data: str, device: str, index: int, together: Together) -> None:
    """Take steps with as many others as each count says; answer how many in a second."""
    try:
        where = torch.device(device)
        chosen = recipe_on(recipe, Path(data), [])
        runner, epoch = runner_of(chosen, where)
        with matmul_precision(chosen.train.precision, where):
            rate(runner, epoch, where, 0.0)
            for count in together.counts:
                together.barrier.wait()
                if index < count:
                    steps = rate(runner, epoch, where, together.seconds)
                    together.answers.put((count, steps))
                together.barrier.wait()
    except BaseException:
        together.barrier.abort()  # nobody waits for this one
        raise


def rate(runner: OneByOne | Captured, epoch: Epoch, device: torch.device, seconds: float) -> float:
    """Return the steps a second, of an epoch at least."""
    began, steps = time.monotonic(), 0
    while steps == 0 or time.monotonic() < began + seconds:
        for _ in runner.run(epoch):
            steps += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return steps / (time.monotonic() - began)


def rates(
    recipe: str, data: Path, counts: Sequence[int], device: str, seconds: float
) -> dict[int, float]:
    """Return the steps a second of so many trainings in all, for each of the counts."""
    context = multiprocessing.get_context("spawn")
    answers: Queue[tuple[int, float]] = context.Queue()
    together = Together(counts, seconds, context.Barrier(max(counts)), answers)
    processes = [
        context.Process(target=trained, args=(recipe, str(data), device, index, together))
        for index in range(max(counts))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"one of {len(processes)} trainings of {recipe} failed")
    found = dict.fromkeys(counts, 0.0)
    for _ in range(sum(counts)):
        count, steps = answers.get()
        found[count] += steps
    return found


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
            found = rates(recipe, data, sorted({1, *args.at_once}), device, args.seconds)
            for count, all_steps in found.items():
                line = {
                    "recipe": recipe,
                    "at_once": count,
                    "steps_per_second": round(all_steps, 1),
                    "times_alone": round(all_steps / found[1], 2),
                    "note": args.note,
                    "device": describe_device(device),
                    "commit": args.commit,
                }
                keep(line, args.lines)


if __name__ == "__main__":
    main()
