"""What options say about the arrays of a user: sources, layouts, channel names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ono.data.array_files import keys, parse_source
from ono.data.importers import parse_channels
from ono.data.info import Channel
from ono.data.layout import Axes, Role, parse_layout
from ono.errors import InputError, nearest


def read_source(base: Path | None, text: str | None) -> str | None:
    """Complete a source: a key of the file given by --from, or a file in the folder given.

    A key of that file comes before a file of the same name that happens to lie here.
    """
    if text is None or base is None:
        return text
    text = text.strip()
    if base.is_dir():
        return str(base / text)
    elsewhere = text not in keys(base) and parse_source(text)[0].is_file()
    return text if elsewhere else f"{base}:{text}"


def read_sources(base: Path | None, texts: Sequence[str] | None) -> tuple[str, ...]:
    """Complete the sources of one role."""
    return tuple(full for text in texts or [] if (full := read_source(base, text)) is not None)


def read_layouts(texts: Sequence[str]) -> dict[Role, Axes]:
    """Read `--layout`: a plain one is for inputs and outputs, `role=` for that role."""
    plain = [text for text in texts if "=" not in text]
    layouts: dict[Role, Axes] = {}
    for text in plain:
        layouts["inputs"] = layouts["outputs"] = parse_layout(text)
    for text in texts:
        if "=" in text:
            role, _, axes = text.partition("=")
            layouts[_role(role)] = parse_layout(axes)
    return layouts


def read_names(texts: Sequence[str]) -> dict[Role, tuple[Channel, ...]]:
    """Read `--names`: the channels of a role, such as `outputs=pressure [Pa],speed`."""
    names: dict[Role, tuple[Channel, ...]] = {}
    for text in texts:
        role, equals, channels = text.partition("=")
        if not equals:
            raise InputError(f"--names is ROLE=name,name such as outputs=pressure, got {text!r}")
        if role.strip() not in ("inputs", "outputs", "params"):
            hint = nearest(role, ("inputs", "outputs", "params"))
            raise InputError(f"--names is for inputs, outputs or params, got {role!r}; {hint}")
        names[_role(role)] = parse_channels(channels)
    return names


def _role(text: str) -> Role:
    roles: tuple[Role, ...] = ("inputs", "outputs", "coords", "params", "weights")
    for role in roles:
        if role == text.strip():
            return role
    raise InputError(f"no array is called {text!r}; {nearest(text, roles)}")
