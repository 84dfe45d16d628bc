"""Where a recipe comes from: a YAML file or a packaged one, with some values changed (no torch)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from ono.data.store import INFO_FILE
from ono.errors import RecipeError, nearest


class _StrictLoader(yaml.SafeLoader):
    """YAML without tags that build objects, without duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if not isinstance(key, str):
                raise yaml.YAMLError(f"the key {key!r} is not text")
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"the key {key!r} is given twice")
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 010 as 8 and 1:30 as 90; people mean ten, or a mistake.
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":int")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789")
)
# It reads 1e-3 as text; people mean the number.
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def read_yaml(path: Path | Traversable) -> dict[str, Any]:
    """Read a YAML mapping; tags, duplicate keys and anything else are refused."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise RecipeError(
            f"recipe {path} is not valid YAML: {' '.join(str(error).split())}"
        ) from None
    except RecursionError:
        raise RecipeError(f"recipe {path} is nested too deeply") from None
    if not isinstance(content, dict):
        raise RecipeError(f"recipe {path} must be a mapping of keys, got {type(content).__name__}")
    return content


def is_dataset(source: str | Path) -> bool:
    """Say whether a recipe is to be derived: the source is a directory that holds data."""
    path = Path(source)
    return (path / INFO_FILE).is_file() or (path.is_dir() and str(source) not in packaged_recipes())


def packaged_recipes() -> list[str]:
    """Return the names of the recipes that come with ono."""
    root = files("ono") / "recipes"
    return sorted(
        f"{folder.name}/{file.name.removesuffix('.yaml')}"
        for folder in root.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    )


def find_recipe(source: str | Path) -> Path | Traversable:
    """Return the file of a recipe, given by its path or its packaged name."""
    if (path := Path(source)).is_file():
        return path
    packaged = packaged_recipes()
    if str(source) in packaged:
        return files("ono") / "recipes" / f"{source}.yaml"
    if path.suffix in (".yaml", ".yml"):
        raise RecipeError(f"no recipe file {source}; {_packaged_like(path.stem, packaged)}")
    raise RecipeError(
        f"no recipe, file or dataset {str(source)!r}; {_packaged_like(str(source), packaged)}"
    )


def _packaged_like(name: str, packaged: list[str]) -> str:
    """Return a hint at the packaged recipes; of all of them, only how they are named."""
    benchmarks = sorted({one.partition("/")[0] for one in packaged})
    own = [one for one in packaged if one.partition("/")[0] == name.partition("/")[0]]
    hint = nearest(name, own or packaged)
    if own or hint.startswith("did you mean "):
        return hint
    return (
        "packaged recipes are named benchmark/model, such as darcy/ono; benchmarks: "
        f"{', '.join(benchmarks)}"
    )


_TEXT = ("data.path",)
"""Overrides taken to the letter: a path may look like a number or hold a comment sign."""


def override(content: dict[str, Any], text: str) -> None:
    """Change one value of a recipe in place, as a text such as "train.epochs=10" says."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {text!r} must be key=value, such as train.epochs=10")
    try:
        parsed = value if key in _TEXT else yaml.load(value, _StrictLoader)
    except yaml.YAMLError:
        raise RecipeError(f"override {text!r}: the value is not valid YAML") from None
    *parents, last = key.split(".")
    place = content
    for parent in parents:
        if place.get(parent) is None:  # as the resolved recipe writes a section that is not there
            place[parent] = {}
        place = place[parent]
        if not isinstance(place, dict):
            raise RecipeError(f"override {text!r}: {parent} is a value, it has no fields")
    place[last] = parsed


def chosen_model(overrides: Iterable[str]) -> str:
    """Return the model that overrides choose, or ono.

    >>> chosen_model(["model.name=fno"]), chosen_model(["model={name: lsm}"]), chosen_model([])
    ('fno', 'lsm', 'ono')
    """
    content: dict[str, Any] = {}
    for text in overrides:
        override(content, text)
    model = content.get("model")
    return str(model.get("name", "ono")) if isinstance(model, dict) else "ono"
