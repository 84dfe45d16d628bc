"""The axes of a prediction, in the order that a layout says."""

from __future__ import annotations

from ono.data.info import Array
from ono.data.layout import LETTERS, Axes, space


def turn(made: Array, wanted: Axes, *, timed: bool, channels: bool) -> tuple[Array, Axes]:
    """Return predictions [samples (time) points or grid axes (channels)] with axes as `wanted`.

    Points take the place of grid axes, and the other way round. An axis that the layout does not
    have comes where it is without one: time behind the samples, channels last.

    >>> import numpy as np
    >>> made, axes = turn(np.zeros((5, 9, 7, 2)), ("c", "y", "x", "b"), timed=False, channels=True)
    >>> made.shape, " ".join(axes)
    ((2, 7, 9, 5), 'c y x b')
    >>> made, axes = turn(np.zeros((5, 3, 63)), ("y", "x", "b"), timed=True, channels=False)
    >>> made.shape, " ".join(axes)
    ((63, 5, 3), 'p b t')
    """
    count = made.ndim - 1 - timed - channels
    along = space(wanted)
    letters = list(wanted)
    if len(along) != count:
        at = min(letters.index(letter) for letter in along)
        before, after = letters[:at], [x for x in letters[at:] if x not in along]
        letters = [*before, *("p" if count == 1 else "xyz"[:count]), *after]
    if "t" not in letters:
        letters.insert(letters.index("b") + 1, "t")
    if "c" not in letters:
        letters.append("c")
    order = tuple(x for x in letters if (x != "t" or timed) and (x != "c" or channels))
    own = sorted(order, key=LETTERS.index)
    return made.transpose([own.index(letter) for letter in order]), order
