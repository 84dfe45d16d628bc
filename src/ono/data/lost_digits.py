"""Refuse numbers of foreign files that single precision cannot hold."""

from __future__ import annotations

import numpy as np

from ono.data.info import Array
from ono.errors import InputError

_SHARE = 1e-3
"""Of what a channel varies by, how much of it may be lost to rounding."""


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
