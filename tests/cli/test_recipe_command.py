"""`ono recipe`: what there is, and what every field means."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ono.cli.app import app
from ono.errors import InputError
from ono.train.recipe import Recipe
from ono.train.recipe_files import packaged_recipes
from ono.train.recipe_options import options


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["recipe", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_packaged_recipes_are_listed() -> None:
    assert printed("list").split() == packaged_recipes()
    assert "pipe/lsm" in printed("list", "pipe").split()
    assert "darcy/lsm" not in printed("list", "pipe")
    with pytest.raises(InputError, match=r"no benchmark is called 'drcy'.*darcy"):
        printed("list", "drcy")


def test_fields_are_shown_with_their_values_and_choices() -> None:
    text = printed("show", "darcy/ono-quick", "train.batch=7")
    (batch,) = [line for line in text.splitlines() if "train.batch" in line]
    assert " 7 " in batch
    assert "samples of a step" in batch
    (norm,) = [line for line in text.splitlines() if "model.eigen.norm" in line]
    assert "ortho | bn | ln | none" in norm


@pytest.mark.parametrize("name", packaged_recipes())
def test_every_field_can_be_changed_by_its_name_and_has_a_meaning(name: str) -> None:
    recipe = Recipe.load(name)
    shown = options(recipe)
    assert [option.name for option in shown if not option.meaning] == []
    for option in shown:
        if option.choices:
            Recipe.load(name, [f"{option.name}={option.value}"])
