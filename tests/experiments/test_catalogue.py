"""The experiments as data: what they run, and that every cell is a valid recipe."""

from __future__ import annotations

import pytest

from ono.errors import InputError
from ono.experiments.budgets import BUDGETS, budget
from ono.experiments.catalogue import BENCHMARKS, NAMES, WITH_SURROUNDINGS, experiment
from ono.experiments.grid import Cell, parse_shard
from ono.experiments.identity import identity
from ono.experiments.published import PUBLISHED
from ono.models.ono_config import ONOConfig
from ono.train.recipe import Recipe
from ono.train.recipe_files import packaged_recipes

RECIPES = {
    name: [c for c in experiment(name).cells if c.kind != "eigenfunctions"] for name in NAMES
}


@pytest.mark.parametrize("work", BUDGETS)
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_recipe_of_its_own(name: str, work: str) -> None:
    cells = RECIPES[name]
    recipes = [Recipe.load(cell.recipe, BUDGETS[work].changes(cell)) for cell in cells]
    assert len({identity(recipe) for recipe in recipes}) == len(cells)


def test_a_budget_changes_epochs_and_samples_only() -> None:
    """And, for a smoke run, the batch and the resolution of its coarse data."""
    for cell in {cell for cells in RECIPES.values() for cell in cells}:
        own = Recipe.load(cell.recipe, cell.changes).resolved()
        for work in ("short", "paper"):
            changed = Recipe.load(cell.recipe, BUDGETS[work].changes(cell)).resolved()
            changed["train"]["epochs"] = own["train"]["epochs"]
            assert changed == own
        smoke = Recipe.load(cell.recipe, BUDGETS["smoke"].changes(cell)).resolved()
        assert (smoke["model"], smoke["optimiser"]) == (own["model"], own["optimiser"])


def test_the_main_grid_is_what_the_operators_can_do() -> None:
    (table,) = experiment("main").tables
    assert ("fno", "pipe") not in table.places
    full = [name for name in packaged_recipes() if not name.endswith("-quick")]
    cells = experiment("main").cells
    assert sorted(cell.recipe for cell in cells if not cell.changes) == full


def test_nodes_of_meshes_are_also_told_their_surroundings() -> None:
    (table,) = experiment("main").tables
    told = {name for row, name in table.places if row == WITH_SURROUNDINGS}
    assert told == set(BENCHMARKS) - {"elasticity"}
    (cell,) = table.places[WITH_SURROUNDINGS, "darcy"].cells
    config = Recipe.load(cell.recipe, BUDGETS["short"].changes(cell)).model.config
    assert isinstance(config, ONOConfig)
    assert config.surroundings == 32
    (finer,) = experiment("super-resolution").tables
    assert set(finer.places[WITH_SURROUNDINGS, "43"].cells[0].changes) > set(cell.changes)


def test_published_numbers_stand_in_places_of_our_tables() -> None:
    tables = {table.name: table for name in NAMES for table in experiment(name).tables}
    for name, known in PUBLISHED.items():
        assert known.origin
        assert set(known.numbers) <= set(tables[name].places), name
    assert PUBLISHED["main"].numbers["ono", "elasticity"] == 0.0118
    assert PUBLISHED["super-resolution"].numbers["fno", "421"] == 0.3631
    assert PUBLISHED["temporal"].numbers["ono", "unseen"] == 0.2143


def test_scaling_runs_the_usual_size_once_for_all_its_figures() -> None:
    cells = experiment("scaling").cells
    assert cells.count(Cell("elasticity/ono")) == 1
    depth, width, deep = experiment("scaling").tables
    usual = (Cell("elasticity/ono"),)
    assert depth.places["elasticity", "8"].cells == usual
    assert width.places["elasticity", "128"].cells == usual
    assert deep.places["ono-8", "elasticity"].cells == usual


@pytest.mark.parametrize("text", ["4/3", "0/3", "3", "1/", "a/b", "-1/2"])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--shard must be i/n"):
        parse_shard(text)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean scaling"):
        experiment("scalin")
    with pytest.raises(InputError, match="did you mean smoke"):
        budget("smoek")
