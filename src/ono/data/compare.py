"""Compare two datasets field by field: moments, quantiles, spectra, and a benchmark's own marks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ono.data.info import Array, ArrayName
from ono.data.marks import marks
from ono.data.store import Dataset

QUANTILES = (0.05, 0.5, 0.95)
SPECTRA = 64  # samples whose spectra are averaged, spread over the dataset


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of both datasets; NaN where one has none."""

    quantity: str
    a: float
    b: float

    @property
    def ratio(self) -> float:
        """Return b / a; NaN where that has no meaning.

        >>> Row("mean", 2.0, 3.0).ratio, Row("min", 0.0, 0.0).ratio
        (1.5, nan)
        """
        return self.b / self.a if self.a else math.nan


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two datasets have in common, field by field, and what only one of them has."""

    fields: dict[str, list[Row]]
    marks: list[Row]
    only_a: list[str]
    only_b: list[str]


def compare(a: Dataset, b: Dataset) -> Comparison:
    """Compare the fields that have the same name; one sample is in memory at a time."""
    names_a, names_b = _fields(a), _fields(b)
    common = [name for name in names_a if name in names_b]
    figures_a, figures_b = _figures(a, common), _figures(b, common)
    same = a.info.name == b.info.name
    return Comparison(
        fields={name: _rows(figures_a[name], figures_b[name]) for name in common},
        marks=_rows(marks(a), marks(b)) if same else [],
        only_a=[name for name in names_a if name not in names_b],
        only_b=[name for name in names_b if name not in names_a],
    )


def _rows(a: dict[str, float], b: dict[str, float]) -> list[Row]:
    names = list(dict.fromkeys((*a, *b)))
    return [Row(name, a.get(name, math.nan), b.get(name, math.nan)) for name in names]


def _fields(dataset: Dataset) -> dict[str, tuple[ArrayName, int]]:
    """Return the array and the channel of every field, by a name such as "outputs.pressure"."""
    info = dataset.info
    axes = "xyz" if info.mesh.dim <= 3 else map(str, range(info.mesh.dim))
    named: list[tuple[ArrayName, list[str]]] = [
        ("coords", list(axes)[: info.mesh.dim]),
        ("inputs", [channel.name for channel in info.inputs]),
        ("params", [channel.name for channel in info.params]),
        ("outputs", [channel.name for channel in info.outputs]),
    ]
    return {
        f"{array}.{name}": (array, channel)
        for array, names in named
        for channel, name in enumerate(names)
    }


def _figures(dataset: Dataset, names: list[str]) -> dict[str, dict[str, float]]:
    known = _fields(dataset)
    fields = {name: known[name] for name in names}
    sums = {name: _Sums() for name in names}
    step = max(1, dataset.info.samples // SPECTRA)
    for index in range(dataset.info.samples):
        for array in dict.fromkeys(array for array, _ in fields.values()):
            if array == "coords" and dataset.info.mesh.shared and index:
                continue
            row = np.asarray(dataset.of_sample(array, index), np.float64)
            for name, (owner, channel) in fields.items():
                if owner == array:
                    sums[name].add(row[..., channel], _points(dataset, row))
                    if index % step == 0 and array in ("inputs", "outputs"):
                        sums[name].add_spectrum(dataset, row[..., channel])
    return {name: found.figures() for name, found in sums.items()}


def _points(dataset: Dataset, row: Array) -> int:
    """Return the points of a row [(time) points channels], or of a ragged [points (time) ...]."""
    if row.ndim == 1:
        return 1
    return int(row.shape[0] if dataset.offsets is not None else row.shape[-2])


@dataclass
class _Sums:
    """What is kept of a field while its samples pass by."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean
    means: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    points: list[int] = field(default_factory=list)
    spectra: list[dict[str, float]] = field(default_factory=list)

    def add(self, values: Array, points: int) -> None:
        mean, old = float(values.mean()), self.count
        self.count += values.size
        # Chan's update: no difference of large sums.
        self.squares += float(((values - mean) ** 2).sum())
        self.squares += (mean - self.mean) ** 2 * old * values.size / self.count
        self.mean += (mean - self.mean) * values.size / self.count
        self.means.append(mean)
        self.lows.append(float(values.min()))
        self.highs.append(float(values.max()))
        self.points.append(points)

    def add_spectrum(self, dataset: Dataset, values: Array) -> None:
        mesh = dataset.info.mesh
        if mesh.kind == "grid" and mesh.shape is not None and mesh.dim > 1:
            for frame in values.reshape(-1, *mesh.shape):
                self.spectra.append(dict(radial_spectrum(frame, periodic=mesh.periodic)))

    def figures(self) -> dict[str, float]:
        found = {
            "points": float(np.mean(self.points)),
            "mean": self.mean,
            "std": math.sqrt(self.squares / self.count),
            "min": min(self.lows),
            "max": max(self.highs),
        }
        for word, values in (("mean", self.means), ("max", self.highs)):
            for share, value in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True):
                found[f"sample {word}, {share:.0%}"] = float(value)
        for band in self.spectra[0] if self.spectra else ():
            found[band] = float(np.mean([spectrum[band] for spectrum in self.spectra]))
        return found


def radial_spectrum(frame: Array, *, periodic: bool) -> Iterator[tuple[str, float]]:
    """Yield the share of the variance in each whole octave of the wave number |k|.

    What does not repeat is faded out towards the edges (Hann), so that the jump there does not
    pass for fine structure.

    >>> x = np.arange(32) / 32
    >>> wave = np.sin(2 * np.pi * 5 * x)[:, None] + 0 * x
    >>> [f"{band} {share:.2f}" for band, share in radial_spectrum(wave, periodic=True)]
    ['power at 1-2 0.00', 'power at 2-4 0.00', 'power at 4-8 1.00', 'power at 8-16 0.00']
    """
    signal = frame - frame.mean()
    if not periodic:
        for axis, nodes in enumerate(frame.shape):
            signal = signal * np.expand_dims(
                np.hanning(nodes), [k for k in range(frame.ndim) if k != axis]
            )
    power = np.abs(np.fft.fftn(signal)) ** 2
    waves = np.meshgrid(*(np.fft.fftfreq(n, 1 / n) for n in frame.shape), indexing="ij")
    radius = np.sqrt(sum(wave**2 for wave in waves))
    total = power[radius > 0].sum()
    low = 1
    while 2 * low <= min(frame.shape) / 2:
        band = (radius >= low) & (radius < 2 * low)
        yield f"power at {low}-{2 * low}", float(power[band].sum() / total) if total else 0.0
        low *= 2
