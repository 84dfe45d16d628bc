"""The axes of an array in letters: `b x y c` is samples, two grid axes, channels.

    b  samples      t  times      c  channels (of coords: the coordinates of a point)
    x y z  the axes of a grid or structured mesh, first one slowest
    p  the points of a cloud

Letters other than c have one length in all arrays of a dataset, so most layouts need not be
written: those are kept that begin with b, end with c where there is one, and agree with the other
arrays. Where several agree, a last axis of at most 8 is taken for channels and a longer one for
space. What is still open, or fits nothing, is an error that shows a layout to copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ono.data.info import Array
from ono.errors import InputError

Axes: TypeAlias = tuple[str, ...]
Role = Literal["inputs", "outputs", "coords", "params", "weights"]
Meshing = Literal["grid", "structured", "cloud"]

LETTERS = "btxyzpc"
SPACES: tuple[Axes, ...] = (("p",), ("x",), ("x", "y"), ("x", "y", "z"))
MOST_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class Named:
    """An array before its axes are known: what it is for, what to call it, its shape."""

    role: Role
    label: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.role} {self.label} {list(self.shape)}"


def parse_layout(text: str) -> Axes:
    """Read a layout such as `b x y c`; spaces may be left out.

    >>> parse_layout("b x y c"), parse_layout("pcb")
    (('b', 'x', 'y', 'c'), ('p', 'c', 'b'))
    """
    axes = tuple(text.replace(",", " ").replace(" ", ""))
    if not axes:
        raise InputError("a layout is empty; write one letter an axis, such as `b x y c`")
    if unknown := [letter for letter in axes if letter not in LETTERS]:
        raise InputError(
            f"layout {text!r} has the letter {unknown[0]!r}; use b (samples), t (times), x y z "
            "(grid axes), p (points), c (channels)"
        )
    if len(set(axes)) != len(axes):
        raise InputError(f"layout {text!r} names an axis twice")
    if "p" in axes and set("xyz") & set(axes):
        raise InputError(
            f"layout {text!r} has both p and grid axes; points lie on one or the other"
        )
    return axes


def find_layouts(
    arrays: Sequence[Named],
    said: Mapping[Role, Axes],
    *,
    mesh: Meshing | None = None,
    times: int | None = None,
    channels: Mapping[Role, int] | None = None,
) -> dict[Named, Axes]:
    """Return the axes of every array, from what was said and from what their shapes allow.

    `times` is how many times are given, `channels` how many names each role has.

    >>> a, u = Named("inputs", "a", (100, 32, 32)), Named("outputs", "u", (100, 32, 32, 2))
    >>> " ".join(find_layouts([a, u], {})[u])
    'b x y c'
    """
    # Files of one role and shape have one layout, and there may be many of them.
    kinds = {(array.role, array.shape): array for array in reversed(arrays)}
    several = sum(array.role == "coords" for array in arrays)
    distinct = tuple(dict.fromkeys(kinds[array.role, array.shape] for array in arrays))
    problem = _Problem(distinct, said, mesh, times, channels or {}, several)
    found = list(problem.solve())
    if len(found) > 1:
        likely = [layout for layout in found if is_likely(layout)]
        found = likely if len(likely) == 1 else found
    if len(found) != 1:
        raise InputError(problem.question(found))
    by_kind = {(array.role, array.shape): axes for array, axes in found[0].items()}
    return {array: by_kind[array.role, array.shape] for array in arrays}


def arrange(array: Array, axes: Axes) -> Array:
    """Order the axes as b t (x y z | p) c, with a channel axis of one where there is none.

    >>> import numpy as np
    >>> arrange(np.zeros((7, 5, 2)), ("p", "b", "c")).shape, arrange(np.zeros(4), ("p",)).shape
    ((5, 7, 2), (4, 1))
    """
    order = sorted(range(len(axes)), key=lambda at: LETTERS.index(axes[at]))
    ordered = array.transpose(order)
    return ordered if "c" in axes else ordered[..., None]


def space(axes: Iterable[str]) -> Axes:
    """Return the letters of the axes that points lie along."""
    return tuple(letter for letter in LETTERS if letter in axes and letter in "xyzp")


@dataclass(frozen=True, slots=True)
class _Problem:
    """Which axes the arrays may have, and which of those agree."""

    arrays: tuple[Named, ...]
    said: Mapping[Role, Axes]
    mesh: Meshing | None
    times: int | None
    channels: Mapping[Role, int]
    coords_files: int

    def solve(self, *, any_order: bool = False) -> Iterator[dict[Named, Axes]]:
        """Yield the layouts that agree, or would if axes were in another order."""
        choices = {array: self._choices(array, any_order) for array in self.arrays}
        return agreeing(choices, {} if self.times is None else {"t": self.times})

    def _choices(self, array: Named, any_order: bool) -> list[Axes]:
        spoken = self.said.get(array.role)
        if spoken is None:
            known = self._usual(array.role, also_timed=any_order)
        else:
            known = _said(array.role, spoken)
        fits = [axes for axes in known if len(axes) == len(array.shape)]
        if spoken is not None and not fits:
            raise InputError(
                f"{array} has {len(array.shape)} axes, its layout `{' '.join(spoken)}` has "
                f"{len(spoken)}"
            )
        if any_order:
            orders = itertools.chain.from_iterable(map(itertools.permutations, fits))
            fits = list(dict.fromkeys(orders))
        return [axes for axes in fits if self._allows(array, axes)]

    def _usual(self, role: Role, *, also_timed: bool) -> list[Axes]:
        """Return the layouts a role may have when nothing was said, perhaps of time."""
        if role == "params":
            return [("b",), ("b", "c")]
        if role in ("coords", "weights"):
            plain = [(*first, *along) for first in ((), ("b",)) for along in SPACES]
            return plain + ([(*axes, "c") for axes in plain] if role == "coords" else [])
        still: list[Axes] = [("b", *along, *end) for along in SPACES for end in ((), ("c",))]
        timed = self.times is not None or any("t" in axes for axes in self.said.values())
        if role == "inputs" or not (timed or also_timed):
            return still
        # Time follows the samples or the points, or comes last, as MATLAB files have it.
        places = [(axes, at) for axes in still for at in (1, axes.index(space(axes)[-1]) + 1)]
        places += [(axes, len(axes)) for axes in still]
        moving = list(dict.fromkeys((*axes[:at], "t", *axes[at:]) for axes, at in places))
        return moving if timed else still + moving

    def _allows(self, array: Named, axes: Axes) -> bool:
        """Tell whether a layout is possible for this array by itself."""
        along, count = space(axes), array.shape[axes.index("c")] if "c" in axes else 1
        if "p" in along and not any(other.role == "coords" for other in self.arrays):
            return False
        if array.role in self.said:
            return True
        long = along if self.times is not None else (*along, "t")
        if any(
            length == 1 for letter, length in zip(axes, array.shape, strict=True) if letter in long
        ):
            return False
        if array.role == "coords":
            files = self.coords_files
            if files > 1 and "c" in axes:
                return False
            dim = files if files > 1 else count
            # Points along a line are a grid of one axis until `cloud` is said.
            if along == ("p",):
                return dim <= 3 and (dim > 1 or self.mesh == "cloud")
            curve = len(along) == 1 and dim > 1 and self.mesh != "structured"
            return len(along) <= dim <= 3 and not curve and self.mesh != "cloud"
        return count <= self.channels.get(array.role, count)

    def question(self, found: Sequence[Mapping[Named, Axes]]) -> str:
        """Say what is not clear, with a layout to copy if any order of axes makes sense."""
        if found:
            return which(found, self.times)
        start = f"the arrays do not fit together ({_shapes(self.arrays, self.times)})"
        fields = [a for a in self.arrays if a.role in ("inputs", "outputs", "params") and a.shape]
        if len({array.shape[0] for array in fields}) > 1:
            counts = dict.fromkeys(f"{array.role} {array.shape[0]}" for array in fields)
            start += f"; their first axes, usually samples, are {', '.join(sorted(counts))}"
        orders = itertools.islice(self.solve(any_order=True), 1000)
        if likely := [one for one in orders if is_likely(one)]:
            plainest = min(map(_disorder, likely))
            plain = [one for one in likely if _disorder(one) == plainest]
            return f"{start}; if axes are in another order, say so: {_options(plain)}"
        cloud = not any(array.role == "coords" for array in self.arrays)
        return f"{start}; a cloud needs --coords" if cloud else start


def which(readings: Sequence[Mapping[Named, Axes]], times: int | None) -> str:
    """Ask which of several readings is meant, with layouts to copy."""
    shapes = _shapes(readings[0], times)
    start = f"the axes can be read in {len(readings)} ways ({shapes}); say which"
    return f"{start}: {_options(readings)}"


def _shapes(arrays: Iterable[Named], times: int | None) -> str:
    shapes = "; ".join(map(str, arrays))
    return shapes if times is None else f"{shapes}; times [{times}]"


def _said(role: Role, axes: Axes) -> list[Axes]:
    """Return a spoken layout, also without the axis of a lone channel or, for inputs, of time."""
    steady = tuple(letter for letter in axes if letter != "t" or role != "inputs")
    return list(dict.fromkeys((steady, tuple(letter for letter in steady if letter != "c"))))


def agreeing(
    choices: Mapping[Named, list[Axes]], lengths: Mapping[str, int]
) -> Iterator[dict[Named, Axes]]:
    """Yield every choice of layouts in which a letter has one length and all points one shape."""
    if not choices:
        yield {}
        return
    array, *others = choices
    for axes in choices[array]:
        here = dict(lengths)
        same = all(
            here.setdefault(letter, length) == length
            for letter, length in zip(axes, array.shape, strict=True)
            if letter != "c"
        )
        if not same:
            continue
        for rest in agreeing({other: choices[other] for other in others}, here):
            layout = {array: axes, **rest}
            if len({space(axes) for axes in layout.values()} - {()}) <= 1:
                yield layout


def is_likely(layout: Mapping[Named, Axes]) -> bool:
    """Tell whether all channels are few and all axes of space long."""
    return all(map(_likely, layout, layout.values()))


def _likely(array: Named, axes: Axes) -> bool:
    """Tell whether a short last axis is channels and a long one is space."""
    if array.role in ("params", "weights", "coords"):
        return True
    if "c" in axes:
        return array.shape[axes.index("c")] <= MOST_CHANNELS
    return array.shape[axes.index(space(axes)[-1])] > MOST_CHANNELS


def _disorder(layout: Mapping[Named, Axes]) -> tuple[int, int, int]:
    """Return how many arrays have samples in the middle, how many coords and others are turned."""
    inside = sum("b" in axes[1:-1] for axes in layout.values())
    along = {a: [letter for letter in axes if letter in "xyz"] for a, axes in layout.items()}
    turned = [array.role for array, letters in along.items() if letters != sorted(letters)]
    return inside, turned.count("coords"), len(turned)


def _options(layouts: Iterable[Mapping[Named, Axes]]) -> str:
    """Write the most likely layouts as options."""

    def doubt(layout: Mapping[Named, Axes]) -> tuple[int, int, int]:
        unlikely = sum(not _likely(array, axes) for array, axes in layout.items())
        samples_late = sum("b" in axes and axes[0] != "b" for axes in layout.values())
        turned = sum(a.role == "coords" and list(x) != sorted(x) for a, x in layout.items())
        return unlikely, samples_late, turned

    ranked = sorted(layouts, key=doubt)
    roles = [{a.role: " ".join(axes) for a, axes in layout.items()} for layout in ranked]
    texts = [" ".join(f'--layout {r}="{axes}"' for r, axes in one.items()) for one in roles]
    return ", or ".join(list(dict.fromkeys(texts))[:3])
