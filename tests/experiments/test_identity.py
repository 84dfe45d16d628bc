"""Which cells are the same: what never counts, what always does, and what came later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from ono.data.info import ArrayName, Provenance
from ono.data.store import Dataset, write_dataset
from ono.experiments import identity as module
from ono.experiments.identity import (
    ADDED,
    BOOKS,
    HOW,
    IDLE,
    WHERE,
    data_identity,
    effective,
    identity,
)
from ono.models.registry import MODELS
from ono.train.recipe import Recipe

GOLDEN = Path(__file__).parents[1] / "golden" / "recipe_fields.txt"


def of(*changes: str) -> str:
    return identity(Recipe.load("darcy/ono", changes))


@pytest.mark.parametrize(
    "change",
    [
        "name=other",
        "seed=3",
        "data.path=elsewhere",
        "data.memory=streamed",
        "train.device=cpu",
        "train.execution=eager",
        "train.compile=true",
        "train.recompute=true",
        "train.checkpoint_minutes=1",
        "train.keep=5",
        "train.tensorboard=true",
    ],
)
def test_where_and_how_it_runs_does_not_count(change: str) -> None:
    assert of(change) == of()


@pytest.mark.parametrize(
    "change",
    [
        "train.epochs=3",
        "model.layers=2",
        "data.train=7",
        "train.precision=fp32",
        "train.micro_batch=2",
        "model.name=fno",
    ],
)
def test_what_is_learned_counts(change: str) -> None:
    removed = ["model.query=nearest"] if change == "model.name=fno" else []
    if removed:
        assert identity(Recipe.load("darcy/fno")) != of()
    else:
        assert of(change) != of()


def test_a_default_counts_by_its_value_not_by_being_written() -> None:
    assert of("optimiser.clip=1.0", "model.width=128") == of()
    layers = Recipe.load("darcy/ono", ["model.preset=paper"]).resolved()["model"]["layers"]
    same = Recipe.load("darcy/ono", ["model.preset=paper", f"model.layers={layers}"])
    assert identity(same) == of("model.preset=paper")


def test_a_changed_default_makes_another_recipe_of_those_that_use_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the default of `clip` had been 2 before: only who wrote 2 keeps his results."""
    recipe, written = Recipe.load("darcy/ono"), Recipe.load("darcy/ono", ["optimiser.clip=2.0"])
    now = identity(recipe)
    then = [(n, 2.0 if n == "optimiser.clip" else v) for n, v in effective(recipe)]
    monkeypatch.setattr(module, "effective", lambda _: then)
    before = identity(recipe)
    monkeypatch.undo()
    assert before != now
    assert before == identity(written)


def test_a_field_that_came_later_leaves_old_results_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    name, before, after = "optimiser.clip", 1.0, 0.5
    usual, other = Recipe.load("darcy/ono"), Recipe.load("darcy/ono", [f"{name}={after}"])
    old = [(field, value) for field, value in effective(usual) if field != name]
    monkeypatch.setattr(module, "effective", lambda _: old)
    kept = identity(usual)
    monkeypatch.undo()
    assert identity(usual) != kept, "unless it is told what it means"
    monkeypatch.setitem(ADDED, name, before)
    assert identity(usual) == kept
    assert identity(other) != kept


def test_what_nothing_reads_does_not_count() -> None:
    few, many = ([f"model.lower.landmarks={n}"] for n in (64, 256))
    nystrom = "model.lower.attention=nystrom"
    usual = identity(Recipe.load("darcy/ono"))
    assert identity(Recipe.load("darcy/ono", few)) == usual
    assert identity(Recipe.load("darcy/ono", many)) == usual
    first, second = (identity(Recipe.load("darcy/ono", [nystrom, *own])) for own in (few, many))
    assert first != second


def test_times_also_depend_on_how_and_where() -> None:
    recipe, eager = (Recipe.load("darcy/ono", c) for c in ([], ["train.execution=eager"]))
    assert identity(recipe, timed_on="a") != identity(eager, timed_on="a")
    assert identity(recipe, timed_on="a") != identity(recipe, timed_on="b")
    assert identity(recipe, timed_on="a") != identity(recipe)


def fields() -> set[str]:
    """Return every field that a recipe of any operator has."""
    found: set[str] = set()
    for name in MODELS:
        content: dict[str, Any] = {"data": {"path": "x"}, "rollout": {}, "model": {"name": name}}
        found |= {field for field, _ in effective(Recipe.from_mapping(content))}
    return found


def test_names_left_out_are_fields() -> None:
    others = {other for other, *_ in IDLE.values()}
    assert {*WHERE, *HOW, *BOOKS, *ADDED, *IDLE, *others} <= fields()


def test_new_fields_say_what_was_done_before_them() -> None:
    known = set(GOLDEN.read_text().split())
    new = fields() - known - {*WHERE, *HOW, *BOOKS, *ADDED}
    assert not new, (
        f"{sorted(new)} would make every result of the ledger another cell's: name them in ADDED "
        f"of identity.py with the value that means what was done before (or, while no result is "
        f"kept yet, in {GOLDEN.name})"
    )


def made(path: Path, scale: float = 1.0, maker: str = "darcy") -> Dataset:
    """Write data as if a benchmark had made it, its outputs multiplied."""
    coords, inputs, outputs = tiny.fields()
    arrays: dict[ArrayName, Any] = {
        "coords": coords,
        "inputs": inputs,
        "outputs": (scale * outputs).astype(np.float32),
    }
    info = tiny.dataset(path / "start").info
    source = Provenance(maker=maker, size="full", seed=0)
    return write_dataset(path / "data", info.model_copy(update={"provenance": source}), arrays)


def test_made_data_is_the_same_but_for_its_last_bits(tmp_path: Path) -> None:
    first, again = made(tmp_path / "a"), made(tmp_path / "b", 1 + 2e-7)
    assert first.sha256 != again.sha256
    assert data_identity(first) == data_identity(again)
    assert data_identity(made(tmp_path / "c", 1.05)) != data_identity(first), "other physics"


def test_data_from_elsewhere_is_its_files(tmp_path: Path) -> None:
    data = made(tmp_path, maker="import")
    assert data_identity(data) == data.sha256
