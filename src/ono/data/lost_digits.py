"""Refuse numbers of foreign files that single precision cannot hold."""

from __future__ import annotations

import numpy as np

from ono.data.info import Array
from ono.errors import InputError

_SHARE = 1e-3
"""Of what a channel varies by, how much of it may be lost to rounding."""

_STEP_SHARE = 0.05
"""Of the step between two times, how much of it may be lost to rounding."""


def refuse_lost_digits(values: Array, stored: Array, label: str) -> None:
    """Refuse numbers [... channels] that are too large for float32, or that hardly differ in it.

    >>> given = 1e9 + np.arange(3.0)[:, None]
    >>> refuse_lost_digits(given - 1e9, (given - 1e9).astype(np.float32), "height")
    """
    if np.can_cast(values.dtype, stored.dtype, "safe"):
        return
    lost = int(np.count_nonzero(np.isinf(stored) & np.isfinite(values)))
    if lost:
        raise InputError(f"{lost} values of {label} are too large for float32; scale them")
    for channel in range(values.shape[-1]):
        given = values[..., channel].astype(np.float64)
        given, kept = given[np.isfinite(given)], stored[..., channel][np.isfinite(given)]
        if given.size == 0 or (spread := np.ptp(given)) == 0:
            continue
        moved = np.abs(kept - given).max()
        if moved > _SHARE * spread:
            raise InputError(
                f"{label}: in float32 numbers as large as {np.abs(given).max():.7g} move by up to "
                f"{moved:.3g}, and all of them lie within {spread:.3g}; subtract an offset, or "
                "scale them"
            )


def single_times(times: Array, label: str) -> Array:
    """Return increasing times in single precision; refuse to change the steps between them.

    >>> single_times(np.array([0.0, 0.1]), "t").dtype.name
    'float32'
    """
    with np.errstate(over="ignore"):
        stored = times.astype(np.float32)
    refuse_lost_digits(times[:, None], stored[:, None], label)
    steps, kept = np.diff(times), np.diff(stored.astype(np.float64))
    changed = np.flatnonzero(np.abs(kept - steps) > _STEP_SHARE * steps)
    if changed.size:
        first = changed[0]
        raise InputError(
            f"{label}: in float32 {changed.size} of {steps.size} steps change, such as "
            f"{steps[first]:.7g} to {kept[first]:.7g} at {times[first]:.7g}; subtract an offset, "
            "or scale them"
        )
    return stored
