"""A benchmark on published shapes instead of drawn ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ono.data.benchmarks import Benchmark, Size
from ono.data.makers.elasticity import Voids
from ono.errors import InputError

NOTE = "published geometry, own solver"


def with_geometry(chosen: Benchmark, file: Path) -> Benchmark:
    """Return the benchmark with the shapes of `file`, in its order and with its usual splits."""
    if chosen.name != "elasticity":
        raise InputError(f"--geometry is known for elasticity only, not for {chosen.name}")
    sizes = {
        "quick": Size({"train": 100, "validation": 80, "test": 20}, f"{NOTE}; fewer of them", {}),
        "full": Size({"train": 1000, "validation": 800, "test": 200}, NOTE, {}),
    }
    return replace(chosen, sizes=sizes, planner=Voids.read(file).plan)
