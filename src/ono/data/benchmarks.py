"""The benchmarks as data: what each one is, its sizes, and the plan that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from ono.data.info import Provenance, Split, Task
from ono.data.makers.airfoil import plan_airfoil
from ono.data.makers.darcy import plan_darcy
from ono.data.makers.elasticity import plan_elasticity
from ono.data.makers.navier_stokes import plan_navier_stokes
from ono.data.makers.pipe import plan_pipe
from ono.data.makers.plasticity import plan_plasticity
from ono.data.plan import Plan, Splits
from ono.errors import InputError, nearest


@dataclass(frozen=True, slots=True)
class Size:
    """One size of a benchmark: how many samples each split has, and what sets it apart."""

    splits: Mapping[Split, int]
    note: str
    settings: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark that can be made from physics; it is a `Maker`."""

    name: str
    title: str
    task: Task
    sizes: Mapping[str, Size]
    planner: Callable[[Mapping[str, int], int, Splits, Provenance], Plan]

    def plan(self, size: str, samples: int | None, seed: int) -> Plan:
        """Describe the dataset of a size, with its splits in proportion if `samples` is given."""
        if size not in self.sizes:
            raise InputError(f"{self.name} has no size {size!r}; {nearest(size, self.sizes)}")
        chosen = self.sizes[size]
        provenance = Provenance(
            maker=self.name,
            size=size,
            seed=seed,
            note=chosen.note,
            settings=dict(chosen.settings),
            versions={name: _version(name) for name in ("ono", "numpy", "scipy", "torch")},
        )
        splits = split_rows(chosen.splits, samples)
        return self.planner(chosen.settings, seed, splits, provenance)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name."""
    if name not in BENCHMARKS:
        raise InputError(f"no benchmark is called {name!r}; {nearest(name, BENCHMARKS)}")
    return BENCHMARKS[name]


def split_rows(counts: Mapping[Split, int], samples: int | None = None) -> Splits:
    """Lay splits end to end, keeping their proportions when there are `samples` in all.

    >>> split_rows({"train": 600, "validation": 100, "test": 100}, 80)
    {'train': (0, 60), 'validation': (60, 70), 'test': (70, 80)}
    """
    total = sum(counts.values())
    samples = total if samples is None else samples
    if samples < len(counts):
        raise InputError(f"samples must be at least {len(counts)}, one a split; got {samples}")
    # One each, then whoever is furthest below its share, as seats are given in a parliament.
    sizes = {name: max(1, count * samples // total) for name, count in counts.items()}
    while (missing := samples - sum(sizes.values())) != 0:
        sign = 1 if missing > 0 else -1
        able = [name for name in sizes if sizes[name] + sign >= 1]
        name = max(able, key=lambda n: sign * (counts[n] * samples / total - sizes[n]))
        sizes[name] += sign
    rows, start = {}, 0
    for name, count in sizes.items():
        rows[name] = (start, start + count)
        start += count
    return rows


BENCHMARKS: dict[str, Benchmark] = {
    "darcy": Benchmark(
        name="darcy",
        title="steady flow through a random two-phase medium: permeability -> pressure",
        task="steady",
        sizes={
            "quick": Size(
                {"train": 600, "validation": 100, "test": 100},
                "coarser problem: solved on 85x85, not subsampled from 421x421",
                {"nodes": 85},
            ),
            "full": Size(
                {"train": 1000, "validation": 100, "test": 200},
                "as published: solved and stored on 421x421; train on every fifth node",
                {"nodes": 421},
            ),
        },
        planner=plan_darcy,
    ),
    "ns2d": Benchmark(
        name="ns2d",
        title="turbulent flow on the torus, viscosity 1e-5: vorticity at 20 times",
        task="rollout",
        sizes={
            "quick": Size(
                {"train": 160, "validation": 20, "test": 20},
                "coarser problem: solved on 64x64, not subsampled from 256x256",
                {"nodes": 64, "stride": 1},
            ),
            "full": Size(
                {"train": 1000, "validation": 100, "test": 200},
                "as published: solved on 256x256, stored on 64x64",
                {"nodes": 256, "stride": 4},
            ),
        },
        planner=plan_navier_stokes,
    ),
    "airfoil": Benchmark(
        name="airfoil",
        title="transonic flow past an airfoil: mesh -> density, velocity, pressure, Mach number",
        task="steady",
        sizes={
            "quick": Size(
                {"train": 160, "validation": 20, "test": 20},
                "coarser problem: solved on 57x13, not subsampled from 221x51; weaker shocks",
                {"wake": 13, "around": 30, "out": 12},
            ),
            "full": Size(
                {"train": 1000, "validation": 100, "test": 200},
                "as published: 221x51 nodes, Mach 0.8; solved by cells, not by nodes",
                {"wake": 50, "around": 120, "out": 50},
            ),
        },
        planner=plan_airfoil,
    ),
    "elasticity": Benchmark(
        name="elasticity",
        title="a stretched rubber cell with a void: geometry -> stress at 972 points",
        task="steady",
        sizes={
            "quick": Size(
                {"train": 640, "validation": 80, "test": 80},
                "the full problem with fewer samples",
                {},
            ),
            "full": Size(
                {"train": 1000, "validation": 200, "test": 200},
                "972 Gauss points of 36x3 elements, stress from a solve on 36x26",
                {},
            ),
        },
        planner=plan_elasticity,
    ),
    "plasticity": Benchmark(
        name="plasticity",
        title="a metal block under a die: die -> position and displacement at 20 times",
        task="timed",
        sizes={
            "quick": Size(
                {"train": 80, "validation": 10, "test": 10},
                "coarser problem: solved on 26x9, not subsampled from 101x31",
                {"nodes_x": 26, "nodes_y": 9},
            ),
            "full": Size(
                {"train": 900, "validation": 7, "test": 80},
                "as published: solved and stored on 101x31",
                {"nodes_x": 101, "nodes_y": 31},
            ),
        },
        planner=plan_plasticity,
    ),
    "pipe": Benchmark(
        name="pipe",
        title="steady flow through a curved pipe: geometry -> velocity and pressure",
        task="steady",
        sizes={
            "quick": Size(
                {"train": 160, "validation": 20, "test": 20},
                "coarser problem: solved on 33x33 (2 to 5 % from 129x129), not subsampled from it",
                {"nodes": 33},
            ),
            "full": Size(
                {"train": 1000, "validation": 100, "test": 200},
                "as published: solved and stored on 129x129, 64x64 Taylor-Hood elements",
                {"nodes": 129},
            ),
        },
        planner=plan_pipe,
    ),
}
