"""What a recipe says, field by field, and what each field means (no torch here)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from ono.train.recipe import Recipe
from ono.train.recipe_sections import ModelRecipe


@dataclass(frozen=True, slots=True)
class Option:
    """A field by the name that changes it, its value, what else it may be, and what it means."""

    name: str
    value: Any
    choices: tuple[str, ...]
    meaning: str


def options(recipe: Recipe) -> list[Option]:
    """Return every field of a recipe, those of its operator included.

    >>> found = {option.name: option for option in options(Recipe.load("darcy/ono"))}
    >>> found["train.batch"].value, found["model.block"].choices
    (4, ('pre', 'post'))
    """
    return list(_fields(recipe, ""))


def _fields(section: BaseModel, before: str) -> Iterator[Option]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, ModelRecipe):
            yield Option("model.name", value.name, (), "the operator")
            yield Option("model.preset", value.preset, (), "where its options start from")
            yield from _fields(value.config, "model.")
        elif isinstance(value, BaseModel):
            yield from _fields(value, f"{before}{name}.")
        else:
            choices = _choices(field.annotation)
            yield Option(before + name, value, choices, field.description or "")


def _choices(annotation: Any) -> tuple[str, ...]:
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()
