"""A recipe: one YAML file that says everything about a training run (no torch here).

Unknown keys are refused with the nearest match, overrides are `key=value`, and the resolved
recipe is written into the run.
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from ono.errors import RecipeError, nearest
from ono.models.registry import MODELS
from ono.train.derive import derive, pace
from ono.train.recipe_files import chosen_model, find_recipe, is_dataset, override, read_yaml
from ono.train.recipe_sections import (
    DataRecipe,
    ModelRecipe,
    OptimiserRecipe,
    RolloutRecipe,
    TrainRecipe,
)


class Recipe(BaseModel, frozen=True, extra="forbid"):
    """Everything that decides a training run."""

    name: str = Field("own", description="names the run directory")
    seed: int = Field(0, ge=0, lt=2**63, description="of first weights and of the order of samples")
    data: DataRecipe
    rollout: RolloutRecipe | None = Field(
        None, description="how a series of frames is learned; a change of a field begins it"
    )
    model: ModelRecipe = ModelRecipe()
    optimiser: OptimiserRecipe = OptimiserRecipe()
    train: TrainRecipe = TrainRecipe()

    @classmethod
    def load(
        cls, source: str | Path, overrides: Iterable[str] = (), *, small: bool = False
    ) -> Recipe:
        """Read a packaged recipe by name ("darcy/ono") or a YAML file, and change some values.

        From a dataset directory a recipe is derived, for the model that the changes choose; a
        `small` one suits a CPU.
        """
        changes, derived = list(overrides), is_dataset(source)
        if derived:
            content = derive(source, model=chosen_model(changes), small=small)
        else:
            content = read_yaml(find_recipe(source))
        for text in changes:
            override(content, text)
        if derived:
            pace(content, small=small)
        return cls.from_mapping(content)

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any]) -> Recipe:
        """Validate a recipe; a mistake becomes one clear RecipeError."""
        try:
            recipe = cls.model_validate(content)
        except ValidationError as error:
            raise RecipeError(_explain(error, cls)) from None
        try:
            recipe.model.config  # noqa: B018
        except ValidationError as error:
            raise RecipeError(_explain(error, MODELS[recipe.model.name].config, "model")) from None
        for name in _truths_for_numbers(content, recipe.resolved()):
            raise RecipeError(f"recipe field {name}: expected a number, got true or false")
        return recipe

    @property
    def forcing(self) -> Literal["teacher", "free"]:
        """Where the steps of a roll-out start in training."""
        return "teacher" if self.rollout is None else self.rollout.forcing

    def resolved(self) -> dict[str, Any]:
        """Return the recipe with every option of the operator written out."""
        content = self.model_dump(mode="json")
        config = self.model.config.model_dump(mode="json")
        content["model"] = {"name": self.model.name, "preset": self.model.preset, **config}
        return content

    def to_yaml(self) -> str:
        """Return the resolved recipe as YAML."""
        return yaml.safe_dump(self.resolved(), sort_keys=False)

    @property
    def sha256(self) -> str:
        """The hash of the resolved recipe."""
        text = json.dumps(self.resolved(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


# Aliases can make a value that is small in the file and endless in print.
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2


def _explain(error: ValidationError, schema: type[BaseModel], prefix: str = "") -> str:
    """Say every fault in a line; `prefix` is where in the recipe the schema stands."""
    lines = []
    for fault in error.errors():
        parts = [str(part) for part in fault["loc"]]
        path = [prefix, *parts] if prefix else parts
        name, where = ".".join(path), ".".join(path[:-1])
        given = _SHORT.repr(fault.get("input"))
        if fault["type"] == "extra_forbidden":
            hint = nearest(parts[-1], _fields(schema, parts[:-1]))
            if where and hint.startswith("did you mean "):
                hint = f"did you mean {where}.{hint.removeprefix('did you mean ')}"
            lines.append(f"recipe has no field {name} (given {given}); {hint}")
        elif fault["type"] == "missing":
            lines.append(f"recipe needs {name}, which is not given")
        else:
            lines.append(f"recipe field {name} is {given}: {_expected(fault, schema, parts)}")
    return "\n".join(lines)


def _truths_for_numbers(
    given: Mapping[str, Any], taken: Mapping[str, Any], where: str = ""
) -> Iterator[str]:
    """Yield the fields that were given true or false and took it for 1 or 0."""
    for key, value in given.items():
        if isinstance(value, Mapping) and isinstance(taken.get(key), Mapping):
            yield from _truths_for_numbers(value, taken[key], f"{where}{key}.")
        elif isinstance(value, bool) and not isinstance(taken.get(key), bool):
            yield where + key


def _expected(fault: ErrorDetails, schema: type[BaseModel], parts: list[str]) -> str:
    """Say what a field takes, in words of recipes rather than of Python."""
    if fault["type"] == "literal_error":
        wrong = fault["input"] if isinstance(fault["input"], str) else ""
        choices = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        hint = nearest(wrong, choices)
        close = f"; {hint}" if hint.startswith("did you mean ") else ""
        return f"expected one of {', '.join(choices)}{close}"
    if fault["type"] == "model_type":
        return f"expected a section; its fields are {', '.join(_fields(schema, parts))}"
    if fault["type"] == "tuple_type":
        return "expected a list, such as [a, b]"
    message = fault["msg"].removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _fields(schema: type[BaseModel], path: list[str]) -> list[str]:
    """Return the names that may stand at a place in a schema."""
    for part in path:
        inner = schema.model_fields[part].annotation
        if get_origin(inner) is not None:
            inner = next((a for a in get_args(inner) if isinstance(a, type)), None)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        schema = inner
    if schema is ModelRecipe:
        return ["name", "preset"]
    return list(schema.model_fields)
