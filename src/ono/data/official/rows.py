"""Which samples of the published files go where.

Train and test are as published. Validation comes from samples that no published split uses, those
nearest to the test samples first; if they do not suffice, from the end of train. In the store the
three lie end to end, samples that are not used are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ono.data.benchmarks import split_rows
from ono.data.info import SPLITS, Array, Split
from ono.data.plan import Splits
from ono.errors import DataError, InputError

# For each file its samples in order; "validation" are those that no published split uses.
PUBLISHED: dict[str, tuple[dict[Split, int], ...]] = {
    "darcy": ({"train": 1000, "validation": 24}, {"test": 200, "validation": 824}),
    "ns2d": ({"train": 1000, "test": 200},),
    "airfoil": ({"train": 1000, "test": 200, "validation": 1290},),
    "pipe": ({"train": 1000, "test": 200, "validation": 1110},),
    "elasticity": ({"train": 1000, "validation": 800, "test": 200},),
    "plasticity": ({"train": 900, "validation": 7, "test": 80},),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Samples by their number, counted through all files: those of each split."""

    train: Array
    validation: Array
    test: Array

    @property
    def splits(self) -> Splits:
        """The rows of the store; without validation there is no such split."""
        counts = {name: len(getattr(self, name)) for name in SPLITS}
        return split_rows({name: count for name, count in counts.items() if count})

    def ranges(self, most: int) -> list[range]:
        """Return the samples in the order of the store, as ranges of at most `most`."""
        order = np.concatenate((self.train, self.validation, self.test))
        runs = np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)
        whole = [range(int(run[0]), int(run[-1]) + 1) for run in runs]
        return [part[k : k + most] for part in whole for k in range(0, len(part), most)]

    def words(self) -> dict[str, str]:
        """Say which samples each split has, as in "1000:1200".

        >>> Choice(np.arange(8), np.array([8, 11]), np.arange(9, 11)).words()
        {'train': '0:8', 'validation': '8:9 11:12', 'test': '9:11'}
        """
        none = np.zeros(0, int)
        spans = {name: Choice(getattr(self, name), none, none).ranges(1 << 40) for name in SPLITS}
        return {
            name: " ".join(f"{part.start}:{part.stop}" for part in parts)
            for name, parts in spans.items()
            if len(getattr(self, name))
        }


def choose(benchmark: str, counts: Sequence[int], validation: int | None) -> Choice:
    """Choose the samples of each split from files that hold so many.

    Files with other counts than the published are divided in the same proportions. By default
    validation has as many samples as test, or all unused ones if these are fewer; a benchmark
    without unused samples (ns2d) gives a tenth of train.
    """
    found = _divide(benchmark, counts)
    train, spare, test = found["train"], found["validation"], found["test"]
    if validation is None:
        validation = min(len(test), len(spare)) or max(1, len(train) // 10)
    taken = max(0, validation - len(spare))
    if validation < 0 or taken >= len(train):
        raise InputError(
            f"validation must be from 0 to {len(spare) + len(train) - 1} for these {benchmark} "
            f"files, got {validation}"
        )
    near = np.argsort(np.abs(spare - test.mean()), kind="stable")
    rest, held = np.split(train, [len(train) - taken])
    chosen = np.sort(np.concatenate((held, spare[near[:validation]])))
    return Choice(rest, chosen, test)


def _divide(benchmark: str, counts: Sequence[int]) -> Mapping[Split, Array]:
    found: dict[Split, list[Array]] = {name: [np.zeros(0, int)] for name in SPLITS}
    start = 0
    for count, published in zip(counts, PUBLISHED[benchmark], strict=True):
        if count < len(published):
            raise DataError(
                f"a {benchmark} file holds {count} samples; {len(published)} are the least, one "
                f"for each of {', '.join(published)}"
            )
        for name, (first, end) in split_rows(published, count).items():
            found[name].append(np.arange(start + first, start + end))
        start += count
    return {name: np.concatenate(parts) for name, parts in found.items()}


def count_warnings(benchmark: str, counts: Sequence[int], names: Sequence[str]) -> list[str]:
    """Say where a file has fewer or more samples than the published one; `names` are the files'.

    A benchmark whose samples lie in one file, or are spread over several, has one count.
    """
    usual = [sum(published.values()) for published in PUBLISHED[benchmark]]
    places = names if len(names) == len(usual) else [", ".join(names)]
    return [
        f"{place}: {count} samples where {expected} were published: splits in the same proportions"
        for place, count, expected in zip(places, counts, usual, strict=True)
        if count != expected
    ]
