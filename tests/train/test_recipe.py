from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ono.errors import RecipeError
from ono.train.recipe import Recipe
from ono.train.recipe_files import packaged_recipes


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(write(path / "r.yaml", text), overrides)
    return str(caught.value)


def test_a_file_is_read_and_the_rest_has_defaults(tmp_path: Path) -> None:
    text = "seed: 7\ndata:\n  path: here\nmodel:\n  width: 32\n  eigen:\n    functions: 4\n"
    recipe = Recipe.load(write(tmp_path / "r.yaml", text))
    config = recipe.model.config.model_dump()
    assert (recipe.seed, recipe.data.path, recipe.train.batch) == (7, "here", 4)
    assert (config["width"], config["eigen"]["functions"], config["eigen"]["heads"]) == (32, 4, 8)


@pytest.mark.parametrize("name", packaged_recipes())
def test_every_packaged_recipe_loads_under_its_own_name(name: str) -> None:
    assert Recipe.load(name).name == name


def test_there_are_packaged_recipes() -> None:
    assert {"darcy/ono", "darcy/ono-quick"} <= set(packaged_recipes())


def test_overrides_reach_every_depth_and_keep_what_they_do_not_name() -> None:
    changes = ["seed=3", "train.epochs=2", "model.eigen.functions=5", "optimiser.clip="]
    plain, changed = Recipe.load("darcy/ono-quick"), Recipe.load("darcy/ono-quick", changes)
    assert (changed.seed, changed.train.epochs, changed.optimiser.clip) == (3, 2, None)
    eigen = changed.model.config.model_dump()["eigen"]
    assert (eigen["functions"], eigen["heads"]) == (5, 4)
    assert changed.train.batch == plain.train.batch
    assert changed.sha256 != plain.sha256


def test_an_override_fills_a_section_that_is_null(tmp_path: Path) -> None:
    plain = Recipe.load("darcy/ono")
    file = write(tmp_path / "own.yaml", plain.to_yaml())
    assert "rollout: null" in file.read_text(encoding="utf-8")
    changed = Recipe.load(file, ["rollout.history=1", "rollout.forcing=free"])
    assert changed.rollout is not None
    assert (changed.rollout.history, changed.rollout.forcing) == (1, "free")
    assert "optimiser.clip is {'norm': 1}" in refusal(
        tmp_path, "data: {path: x}\noptimiser: {clip: null}", "optimiser.clip.norm=1"
    )


@pytest.mark.parametrize(("text", "value"), [("1e-3", 1e-3), ("2E4", 2e4), (".5e-1", 0.05)])
def test_scientific_notation_is_a_number(tmp_path: Path, text: str, value: float) -> None:
    file = write(tmp_path / "r.yaml", f"data: {{path: x}}\noptimiser: {{learning_rate: {text}}}")
    assert Recipe.load(file).optimiser.learning_rate == value
    override = [f"optimiser.learning_rate={text}"]
    assert Recipe.load("darcy/ono", override).optimiser.learning_rate == value


@pytest.mark.parametrize(("text", "epochs"), [("010", 10), ("1_000", 1000), ("+3", 3)])
def test_whole_numbers_are_decimal(text: str, epochs: int) -> None:
    assert Recipe.load("darcy/ono", [f"train.epochs={text}"]).train.epochs == epochs


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("model.widht=64", ["no field model.widht", "given 64", "did you mean model.width?"]),
        ("train.epoch=3", ["no field train.epoch", "given 3", "did you mean train.epochs?"]),
        ("model.eigen.functoins=3", ["model.eigen.functoins", "model.eigen.functions?"]),
        ("trian.epochs=3", ["no field trian", "did you mean train?"]),
        ("model.name=onoo", ["model.name is 'onoo'", "did you mean ono?"]),
        ("model.preset=papre", ["preset 'papre'", "did you mean paper?"]),
        ("optimiser.schedule=onecylce", ["optimiser.schedule", "'onecylce'", "mean onecycle?"]),
        ("data.memory=all", ["data.memory is 'all': expected one of auto, resident, streamed"]),
        ("train.epochs=-4", ["train.epochs is -4", "greater than 0"]),
        ("train.epochs=many", ["train.epochs is 'many'", "integer"]),
        ("train.epochs=true", ["train.epochs: expected a number, got true or false"]),
        ("model.lower.heads=yes", ["model.lower.heads: expected a number"]),
        ("train.keep=1", ["train.keep is 1", "greater than or equal to 2"]),
        ("train.nonfinite=skip", ["train.nonfinite is 'skip'", "skip:n"]),
        ("train.nonfinite=skip:0", ["train.nonfinite is 'skip:0'", "at least 1"]),
        ("train.device=gpu", ["train.device is 'gpu'", "auto, cpu, cuda"]),
        ("optimiser.learning_rate=.inf", ["optimiser.learning_rate is inf", "finite"]),
        ("optimiser.learning_rate=.nan", ["optimiser.learning_rate is nan"]),
        ("optimiser.learning_rate=1e99", ["optimiser.learning_rate is 1e+99", "less than or"]),
        ("optimiser.clip=1e39", ["optimiser.clip is 1e+39", "less than or equal to 1"]),
        ("train=5", ["train is 5", "expected a section; its fields are epochs, batch, loss"]),
        ("model=fno", ["model is 'fno'", "expected a section; its fields are name, preset"]),
        ("model.lower=3", ["model.lower is 3", "expected a section; its fields are", "attention"]),
        ("data.outputs=u", ["data.outputs is 'u'", "expected a list, such as [a, b]"]),
        ("seed=99999999999999999999", ["seed is 99999999999999999999", "less than 92233720"]),
        ("name.first=5", ["name.first=5", "name is a value"]),
        ("epochs", ["'epochs'", "key=value"]),
        ("=5", ["'=5'", "key=value"]),
        ("name=[", ["'name=['", "not valid YAML"]),
    ],
)
def test_a_wrong_value_names_itself_and_what_was_expected(
    tmp_path: Path, change: str, parts: list[str]
) -> None:
    message = refusal(tmp_path, "name: mine\ndata: {path: x}", change)
    for part in parts:
        assert part in message


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, "sede: 1\ntrain: {epochs: x}")
    assert [line.split(" (")[0].split(" is ")[0] for line in message.splitlines()] == [
        "recipe needs data, which",
        "recipe field train.epochs",
        "recipe has no field sede",
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("seed: 1\ndata: {path: x}\nseed: 2", "'seed' is given twice"),
        ("data: {path: x, path: y}", "'path' is given twice"),
        ("data: {path: x", "not valid YAML"),
        ("- data", "mapping of keys, got list"),
        ("", "mapping of keys, got NoneType"),
        ("? [a]\n: b", "is not text"),
        ("1: 2\ndata: {path: x}", "the key 1 is not text"),
        ("data: &d {path: x, train: *d}", "data.train"),
        ("[" * 5000, "nested too deeply"),
        ("\0", "not valid YAML"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, part: str) -> None:
    assert part in refusal(tmp_path, text)


def test_a_message_stays_short_when_the_value_is_not(tmp_path: Path) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x]\n"
    for name, of in zip("bcdef", "abcde", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{of}'] * 8)}]\n"
    assert len(refusal(tmp_path, bomb + "data: *f")) < 4000


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(RecipeError, match=r"r\.yaml cannot be read"):
        Recipe.load(tmp_path / "r.yaml")


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch {canary}']",
        "!!python/object/new:os.mkdir ['{canary}']",
        "!!python/name:os.system ''",
    ],
)
def test_tags_that_build_objects_are_refused(tmp_path: Path, tag: str) -> None:
    canary = tmp_path / "canary"
    hostile = tag.format(canary=canary)
    assert "not valid YAML" in refusal(tmp_path, f"data: {{path: x}}\nname: {hostile}")
    assert "not valid YAML" in refusal(tmp_path, "data: {path: x}", f"name={hostile}")
    assert not canary.exists()


def test_a_missing_recipe_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"dataset 'darcy/ono-quik'; did you mean darcy/ono-q"):
        Recipe.load("darcy/ono-quik")
    with pytest.raises(RecipeError, match=r"choose from darcy/deeponet, .*darcy/u-fno-quick$"):
        Recipe.load("darcy/something-else")
    with pytest.raises(
        RecipeError, match=r"'data/none'; packaged .* airfoil, darcy, .*plasticity$"
    ):
        Recipe.load("data/none")
    with pytest.raises(RecipeError, match=r"no recipe file .*none\.yaml; packaged .*darcy/ono"):
        Recipe.load(tmp_path / "none.yaml")


@pytest.mark.parametrize("preset", ["default", "paper", "paper-text"])
def test_the_resolved_recipe_reads_back_as_the_same(tmp_path: Path, preset: str) -> None:
    changes = [f"model.preset={preset}", "model.eigen.ridge=1e-7", "train.nonfinite=skip:3"]
    recipe = Recipe.load("darcy/ono", changes)
    again = Recipe.load(write(tmp_path / "r.yaml", recipe.to_yaml()))
    assert again.resolved() == recipe.resolved() == yaml.safe_load(recipe.to_yaml())
    assert again.model.config == recipe.model.config
    assert again.sha256 == recipe.sha256


def test_a_recipe_is_checked_without_torch() -> None:
    code = """
import sys
from ono.train.recipe import Recipe
Recipe.load("darcy/ono", ["model.width=64"]).to_yaml()
sys.exit("torch was loaded" if "torch" in sys.modules else 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
