"""Ask every model what it can do, by building and calling it.

python benchmarks/capabilities.py --lines benchmarks/results/capabilities.jsonl

A benchmark counts where the model is built for it without refusing. The other columns are calls:
a grid it was not built for, query points elsewhere, ragged clouds with a mask.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from ono.data.benchmarks import BENCHMARKS, benchmark
from ono.domain import Domain
from ono.errors import OnoError
from ono.models.registry import MODELS, build
from ono.problem import Problem

GRID = Problem.grid((24, 24), in_channels=1, out_channels=1)
FIXED = Problem(dim=2, in_channels=1, out_channels=1, points=100)
RAGGED = Problem(dim=2, in_channels=1, out_channels=1)


def of_benchmark(name: str) -> Problem:
    """Return what a model is built for on a benchmark."""
    info = benchmark(name).plan("full", None, 0).info
    frames = 10 if info.task == "rollout" else 0
    outputs = len(info.outputs)
    return Problem(
        dim=info.mesh.dim,
        in_channels=len(info.inputs) + len(info.params) + frames * outputs,
        out_channels=outputs,
        timed=info.task == "timed",
        kind=info.mesh.kind,
        shape=(85, 85) if name == "darcy" else info.mesh.shape,
        points=972 if info.mesh.shape is None else torch.Size(info.mesh.shape).numel(),
    )


def can(attempt: Callable[[], object]) -> str:
    """Say yes if an attempt is not refused."""
    try:
        with torch.no_grad():
            attempt()
    except OnoError:
        return "-"
    return "yes"


def abilities(model: str) -> dict[str, str]:
    """Return the line of a model."""
    config = MODELS[model].presets["default"]()
    cloud = Domain(torch.rand(2, 100, 2))
    mask = torch.arange(100) < torch.tensor([[100], [60]])
    finer, values = Domain.grid((32, 32), batch=2), torch.randn(2, 100, 1)

    def elsewhere(problem: Problem, domain: Domain) -> Callable[[], object]:
        query = Domain(torch.rand(2, 7, 2))
        return lambda: build(config, problem).eval()(
            domain, torch.randn(2, domain.points, 1), query=query
        )

    line = {"model": model}
    for name in BENCHMARKS:
        line[name] = can(partial(build, config, of_benchmark(name)))
    line["other grids"] = can(
        lambda: build(config, GRID).eval()(finer, torch.randn(2, finer.points, 1))
    )
    line["queries on grids"] = can(elsewhere(GRID, Domain.grid((24, 24), batch=2)))
    line["queries in clouds"] = can(elsewhere(FIXED, cloud))
    line["ragged clouds"] = can(
        lambda: build(config, RAGGED).eval()(Domain(cloud.coords, mask=mask), values)
    )
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lines", type=Path, help="write the results to this file of JSON lines")
    args = parser.parse_args()
    text = "".join(json.dumps(abilities(model)) + "\n" for model in MODELS)
    if args.lines is not None:
        args.lines.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
