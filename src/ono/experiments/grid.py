"""An experiment as data: tables whose places are filled by cells, things that can be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ono.errors import InputError

Kind = Literal["train", "speed", "eigenfunctions"]
Unit = Literal["error", "seconds", "millions", "GiB", "degrees"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to run for any seed: a packaged recipe with some values changed.

    `samples` asks for a dataset of so many samples in all, where the usual one is too small;
    `resolutions` are those to evaluate at besides that of training; of a `pictured` cell some
    fields are kept with its first seed.
    """

    recipe: str
    changes: tuple[str, ...] = ()
    kind: Kind = "train"
    samples: int | None = None
    resolutions: tuple[int, ...] = ()
    pictured: bool = False

    @property
    def benchmark(self) -> str:
        """Whose data it needs.

        >>> Cell("darcy/ono").benchmark
        'darcy'
        """
        return self.recipe.partition("/")[0]

    def __str__(self) -> str:
        return " ".join((self.recipe, *self.changes))


@dataclass(frozen=True, slots=True)
class Place:
    """Which number of which cells stands in a place of a table; of several cells, their range."""

    cells: tuple[Cell, ...]
    value: str = "test"
    unit: Unit = "error"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the paper; with an `axis`, its columns are numbers and it is drawn as well."""

    name: str
    title: str
    places: Mapping[tuple[str, str], Place]
    note: str = ""
    axis: str | None = None

    @property
    def rows(self) -> list[str]:
        """The names of the rows, in order."""
        return list(dict.fromkeys(row for row, _ in self.places))

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order."""
        return list(dict.fromkeys(column for _, column in self.places))


@dataclass(frozen=True, slots=True)
class Experiment:
    """What `ono reproduce NAME` runs: the cells of its tables, each once."""

    name: str
    title: str
    tables: tuple[Table, ...]

    @property
    def cells(self) -> list[Cell]:
        """Every cell once, in the order of the tables."""
        every = (cell for t in self.tables for place in t.places.values() for cell in place.cells)
        return list(dict.fromkeys(every))


@dataclass(frozen=True, slots=True)
class Job:
    """A cell of an experiment with a seed: what one line of the ledger is about."""

    experiment: str
    cell: Cell
    seed: int

    def __str__(self) -> str:
        return f"{self.experiment}: {self.cell}, seed {self.seed}"


def parse_shard(text: str) -> tuple[int, int]:
    """Read which part of the jobs is meant.

    >>> parse_shard("2/4")
    (2, 4)
    """
    index, slash, count = text.partition("/")
    if slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count):
        return int(index), int(count)
    raise InputError(f"--shard must be i/n with i from 1 to n, such as 2/4, got {text!r}")
