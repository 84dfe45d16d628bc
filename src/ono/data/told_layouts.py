"""Files and their axes as `dataset.json` tells them, and the axes read from that text again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import get_args

from ono.data.info import Scalar
from ono.data.layout import LETTERS, Axes, Role

_AXES = re.compile(rf"\[([{LETTERS}](?: [{LETTERS}])*)\](?:, |$)")


def tell(files: Iterable[tuple[str, Axes]]) -> str:
    """Say in which order every file has its axes.

    >>> tell([("a.npy", ("b", "y", "x")), ("d.npz:e", ("b", "y", "x", "c"))])
    'a.npy [b y x], d.npz:e [b y x c]'
    """
    return ", ".join(f"{text} [{' '.join(axes)}]" for text, axes in files)


def kept_layouts(settings: Mapping[str, Scalar]) -> dict[Role, str]:
    """Return the axes of outputs, and of other roles whose order was not that of the store.

    >>> kept_layouts({"inputs": "a.npy [b y x], d.npz:e [b y x c]", "outputs": "u.npy [b x y]"})
    {'inputs': 'b y x c', 'outputs': 'b x y'}
    """
    layouts: dict[Role, str] = {}
    roles: tuple[Role, ...] = get_args(Role)
    for role in roles:
        told: list[str] = _AXES.findall(str(settings.get(role, "")))
        widest = max(told, key=len, default="")
        if widest and (role == "outputs" or not is_plain(widest.split())):
            layouts[role] = widest
    return layouts


def is_plain(axes: Iterable[str]) -> bool:
    """Tell whether axes are in the order of the store: b t (x y z | p) c.

    >>> is_plain(("b", "x", "y")), is_plain(("b", "y", "x"))
    (True, False)
    """
    places = [LETTERS.index(letter) for letter in axes]
    return places == sorted(places)
