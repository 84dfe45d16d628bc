"""Options that several verbs judge alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import typer

from ono.errors import InputError, nearest

Word = TypeVar("Word", bound=str)

RecipeSource = Annotated[
    str, typer.Argument(help="A packaged recipe (darcy/ono), a YAML file, or a dataset directory.")
]


def refuse(why: str, **options: object) -> None:
    """Refuse options that were given and would be ignored.

    >>> refuse("there is no dry run", preview=None, names=[])
    """
    for option, value in options.items():
        if value is not None and value != []:
            raise InputError(f"--{option} is of no use here: {why}")


def refuse_no_picture(option: str, path: Path | None) -> None:
    """Refuse to draw in a file of another kind, which the picture would replace.

    >>> refuse_no_picture("out", Path("gallery.png"))
    """
    if path is not None and path.suffix.lower() != ".png":
        raise InputError(f"{path} is no .png file, which the picture is; end --{option} in .png")


def choice(option: str, value: str | None, known: tuple[Word, ...]) -> Word | None:
    """Return the known word a user gave, if any.

    >>> choice("mesh", "grid", ("grid", "cloud"))
    'grid'
    """
    if value is None:
        return None
    for word in known:
        if word == value:
            return word
    raise InputError(f"--{option} has no choice {value!r}; {nearest(value, known)}")
