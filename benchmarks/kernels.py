"""Time every fused kernel of a training step with programs of several sizes.

python benchmarks/kernels.py elasticity/ono darcy/ono --set train.precision=bf16

This is where the sizes in `ono.nn.fused_launch` come from. One eager step is taken, the launches of
its kernels are noted, and the first of each kernel is repeated with other numbers of points, warps,
stages and registers a program (64x8s1r128). Microseconds are those of one launch among many in a
CUDA graph, so that starting it costs nothing; the size in use is marked with a star.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lines import keep
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from ono.device import describe_device, matmul_precision
from ono.experiments.speed import recipe_on, runner_of
from ono.experiments.stand_in import stand_in
from ono.train.execution import Epoch

Size = tuple[int, int, int, int | None]
CHAINS: tuple[Size, ...] = (
    (64, 4, 1, None),
    (64, 4, 1, 168),
    (64, 4, 1, 128),
    (64, 8, 1, None),
    (64, 8, 1, 128),
    (128, 8, 1, None),
)
SUMS: tuple[Size, ...] = (
    (64, 4, 2, None),
    (64, 8, 1, None),
    (64, 8, 2, None),
    (64, 4, 3, None),
    (64, 8, 3, None),
)
SUMMING = ("lower_context", "upper_moment", "moments_within_heads", "weight_gradients")
TIMES = 40


class Launch(NamedTuple):
    """A kernel with all it was given."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def size(self) -> Size:
        """Points, warps, stages and registers of a program."""
        given = self.options
        rest = given.get("num_warps", 4), given.get("num_stages", 3), given.get("maxnreg")
        return given["tile"], *rest

    def resized(self, tile: int, warps: int, stages: int, registers: int | None) -> Launch:
        """Return the launch with programs of another size, and as many as it then takes."""
        known = self.options["tile"]
        first = -(-self.grid[0] * known // tile)
        grid = self.grid if tile == known else (first, *self.grid[1:])
        sizes = {"tile": tile, "num_warps": warps, "num_stages": stages, "maxnreg": registers}
        args = tuple(described_again(arg, tile) for arg in self.args)
        return Launch(self.kernel, grid, args, self.options | sizes)

    def __call__(self) -> None:
        self.kernel[self.grid](*self.args, **self.options)


def described_again(arg: Any, tile: int) -> Any:
    """Return an argument; one that describes tiles of points then describes others."""
    if not isinstance(arg, TensorDescriptor) or len(arg.block_shape) < 3:  # or a weight
        return arg
    samples, _, width = arg.block_shape
    return replace(arg, block_shape=[samples, tile, width])


@contextmanager
def noted(launches: dict[str, Launch]) -> Iterator[None]:
    """Note the first launch of each kernel that has a size to choose."""
    run = JITFunction.run

    def note(kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> Any:
        if "tile" in options:
            launches.setdefault(kernel.__name__, Launch(kernel, grid, args, options))
        return run(kernel, *args, grid=grid, warmup=warmup, **options)

    JITFunction.run = note
    try:
        yield
    finally:
        JITFunction.run = run


def step_launches(source: str, data: Path, changes: list[str]) -> dict[str, Launch]:
    """Take a step; return the launches of its fused kernels by name."""
    recipe = recipe_on(source, data, ["train.execution=eager", "train.kernels=fused", *changes])
    runner, epoch = runner_of(recipe, torch.device("cuda"))
    found: dict[str, Launch] = {}
    with noted(found), matmul_precision(recipe.train.precision, "cuda"):
        list(runner.run(Epoch(epoch.order[: recipe.train.batch], epoch.rates[:1], epoch.times)))
    return found


def microseconds(launch: Launch) -> float:
    """Return how long a launch takes among many of its like."""
    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(TIMES):
            launch()
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1000 / TIMES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--set", nargs="*", default=[], help="changes of the recipes")
    parser.add_argument("--kernels", nargs="*", help="only these")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    for source in args.recipes:
        with tempfile.TemporaryDirectory() as folder:
            data = stand_in(source.partition("/")[0], Path(folder) / "data", samples=args.samples)
            launches = step_launches(source, data.path, args.set)
        for name, launch in launches.items():
            if args.kernels and name not in args.kernels:
                continue
            timed: dict[str, Any] = {}
            for size in SUMS if name in SUMMING else CHAINS:
                tile, warps, stages, registers = size
                label = f"{tile}x{warps}s{stages}" + (f"r{registers}" if registers else "")
                label += "*" if size == launch.size else ""
                try:
                    timed[label] = round(microseconds(launch.resized(*size)), 1)
                except Exception as error:  # a size that does not fit the chip
                    timed[label] = type(error).__name__
            line = {"recipe": source, "changes": args.set, "kernel": name, **timed}
            keep(line | {"device": describe_device("cuda"), "commit": args.commit}, args.lines)


if __name__ == "__main__":
    main()
