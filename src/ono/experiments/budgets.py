"""How much work an experiment may take: epochs and sample counts, nothing else of a recipe.

Only a smoke run also takes small batches and coarse grids, so that a CPU is done in minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ono.errors import InputError, nearest
from ono.experiments.grid import Cell


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget. Without `samples`, data is made at its full size; `steps` are eigenfunctions'."""

    name: str
    epochs: int
    note: str
    steps: int
    seconds: float
    size: str = "full"
    samples: Mapping[str, int] = field(default_factory=dict)
    resolutions: Mapping[str, int] = field(default_factory=dict)
    timed_resolutions: Mapping[str, int] = field(default_factory=dict)
    fewer: int = 1

    @property
    def is_smoke(self) -> bool:
        """Whether it only shows that everything runs."""
        return self.fewer > 1

    def changes(self, cell: Cell) -> list[str]:
        """Return every change of the recipe: the budget's, then the cell's own.

        >>> BUDGETS["smoke"].changes(Cell("elasticity/ono", ("data.train=400",)))[1:]
        ['data.train=2', 'data.validation=1', 'data.test=1', 'train.batch=2', 'data.train=4']
        """
        own = list(cell.changes)
        if not self.is_smoke:
            return [f"train.epochs={self.epochs}", *own]
        few = ["data.train=2", "data.validation=1", "data.test=1", "train.batch=2"]
        coarse = dict(self.resolutions)
        if cell.kind == "speed":
            coarse |= self.timed_resolutions
        if cell.benchmark in coarse:
            few.append(f"data.resolution={coarse[cell.benchmark]}")
        return [f"train.epochs={self.epochs}", *few, *map(self._fewer, own)]

    def _fewer(self, change: str) -> str:
        name, _, value = change.partition("=")
        if name == "data.train":
            return f"{name}={max(1, int(value) // self.fewer)}"
        return f"{name}=3" if name == "train.batch" else change


BUDGETS: dict[str, Budget] = {
    "smoke": Budget(
        "smoke",
        epochs=1,
        note="1 epoch on two samples of coarse data: shows that it runs, says nothing else",
        steps=60,
        seconds=0.01,
        size="quick",
        samples={"plasticity": 5, "": 16},
        resolutions={"darcy": 29, "ns2d": 16, "pipe": 17},
        timed_resolutions={"ns2d": 8},  # all frames at once are too many for Nyström attention
        fewer=100,
    ),
    "short": Budget("short", epochs=100, note="100 epochs, all samples", steps=600, seconds=1.0),
    "paper": Budget("paper", epochs=500, note="500 epochs, all samples", steps=2000, seconds=5.0),
}


def budget(name: str) -> Budget:
    """Return the budget of that name."""
    if name not in BUDGETS:
        raise InputError(f"no budget is called {name!r}; {nearest(name, BUDGETS)}")
    return BUDGETS[name]
