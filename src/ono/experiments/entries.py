"""What stands in one place of a table: our number, and below it what the paper printed."""

from __future__ import annotations

from dataclasses import dataclass

from ono.experiments.grid import Place, Unit
from ono.experiments.published import Number

ABSENT = "–"
"""A place that was not run yet. A place that does not exist is empty."""

UNITS: dict[Unit, str] = {
    "error": "",
    "seconds": " s",
    "millions": " M",
    "GiB": " GiB",
    "degrees": "°",
}


@dataclass(frozen=True, slots=True)
class Ours:
    """What was measured for a place: mean and spread over seeds of each cell that has a result.

    With `failed` seeds there was none.
    """

    means: list[float]
    spreads: list[float]
    seeds: int
    cells: int = 1
    failed: int = 0


def entry(
    place: Place | None,
    ours: Ours | None,
    printed: Number | None,
    state: str = "",
    *,
    compare: bool = True,
) -> tuple[str, str]:
    """Return our number, or how far it is, and the paper's with the difference.

    >>> entry(Place((), "test"), Ours([0.009], [0.0], 1), 0.0072)
    ('0.0090', 'paper 0.0072, +25 %')
    >>> entry(Place((), "test"), None, 0.0072, "at epoch 40")
    ('at epoch 40', 'paper 0.0072')
    """
    unit = "error" if place is None else place.unit
    mine = "" if place is None else (state or ABSENT)
    if ours is not None:
        mine = _measured(ours, unit)
    if printed is None:
        return mine, ""
    theirs = f"paper {_printed(printed, unit)}"
    comparable = compare and unit == "error" and ours is not None and len(ours.means) == 1
    if comparable and ours is not None and not isinstance(printed, tuple):
        theirs += f", {100 * (ours.means[0] / printed - 1):+.0f} %"
    return mine, theirs


def _measured(ours: Ours, unit: Unit) -> str:
    if ours.cells > 1:
        part = "" if len(ours.means) == ours.cells else f" ({len(ours.means)} of {ours.cells})"
        return _printed((min(ours.means), max(ours.means)), unit) + part
    mean = number(ours.means[0], unit)
    spread = f" ± {_like(ours.spreads[0], mean)}" if ours.seeds > 1 else ""
    lost = f" ({ours.failed} failed)" if ours.failed else ""
    return f"{mean}{spread}{UNITS[unit]}{lost}"


def _printed(value: Number, unit: Unit) -> str:
    if isinstance(value, tuple):
        return f"{number(value[0], unit)} to {number(value[1], unit)}{UNITS[unit]}"
    return f"{number(value, unit)}{UNITS[unit]}"


def _like(spread: float, mean: str) -> str:
    """Write a spread with the digits of its mean.

    >>> _like(0.00012, "0.0049"), _like(0.00012, "0.00049"), _like(1e-7, "4.9e-06")
    ('0.0001', '0.00012', '1e-07')
    """
    return f"{spread:.2g}" if "e" in mean else f"{spread:.{len(mean.partition('.')[2])}f}"


def number(value: float, unit: Unit) -> str:
    """Write a number with as many digits as its unit deserves.

    >>> number(0.01184, "error"), number(3.813, "seconds"), number(0.00034, "error")
    ('0.0118', '3.81', '0.00034')
    """
    if unit == "error":
        return f"{value:.4f}" if value >= 0.001 or value == 0 else f"{value:.2g}"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
