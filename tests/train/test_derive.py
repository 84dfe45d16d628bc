"""A recipe for data nobody wrote one for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from ono.data.info import Array, ArrayName, Channel
from ono.data.store import Dataset, write_dataset
from ono.data.view import View
from ono.errors import DataError, RecipeError
from ono.evaluate.metrics import channel_errors, relative_l2
from ono.evaluate.operator import Operator
from ono.train.derive import derive
from ono.train.loop import fit
from ono.train.prepare import cut
from ono.train.recipe import Recipe
from ono.train.step import sample_losses


def test_a_dataset_trains_without_a_recipe(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    small = ["model.width=16", "model.layers=2", "train.epochs=1", "model.eigen.functions=4"]
    recipe = Recipe.load(data.path, small, small=True)
    assert recipe.name == "tiny/ono"
    assert np.isfinite(fit(recipe, tmp_path / "run").test)


def test_a_small_recipe_is_smaller(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    small, large = Recipe.load(data.path, small=True), Recipe.load(data.path)
    assert small.model.config.model_dump()["width"] < large.model.config.model_dump()["width"]
    assert small.train.epochs <= large.train.epochs


@pytest.mark.parametrize("small", [False, True])
def test_validations_follow_the_epochs_in_effect(tmp_path: Path, small: bool) -> None:
    data = tiny.dataset(tmp_path / "data")

    def every(*changes: str) -> int:
        return Recipe.load(data.path, changes, small=small).train.validate_every

    assert every() == (33 if small else 10)  # of 333 and 500 epochs
    assert every("train.epochs=40") == every("train={epochs: 40}") == 4
    assert every("train.epochs=3") == 1
    assert every("train.epochs=40", "train.validate_every=7") == 7
    assert every("train={batch: 2}") == 1
    for wrong in ("train.epochs=many", "train=many", "train.epochs=0"):
        with pytest.raises(RecipeError, match="train"):
            every(wrong)


def test_a_written_recipe_keeps_its_validations(tmp_path: Path) -> None:
    recipe = Recipe.load(tiny.dataset(tmp_path / "data").path)
    (tmp_path / "own.yaml").write_text(recipe.to_yaml())
    read = Recipe.load(tmp_path / "own.yaml", ["train.epochs=40"])
    assert read.train.validate_every == recipe.train.validate_every == 10


@pytest.mark.parametrize("change", ["model.name=fno", "model={name: fno}"])
@pytest.mark.parametrize("kind", ["grid", "structured"])
def test_another_model_has_a_recipe_of_its_own(tmp_path: Path, change: str, kind: str) -> None:
    data = tiny.dataset(tmp_path / "data")
    mesh = data.info.mesh.model_copy(update={"kind": kind})
    data = changed(data, tmp_path / kind, mesh=mesh)
    recipe = Recipe.load(data.path, [change, "model.width=8"], small=True)
    assert recipe.name == "tiny/fno"
    assert recipe.model.options == {"width": 8}
    assert Recipe.load(data.path, [change, "name=mine"]).name == "mine"


def test_another_model_trains_without_a_recipe(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    changes = ["model.name=fno", "model.width=4", "model.modes=3", "train.epochs=1"]
    assert np.isfinite(fit(Recipe.load(data.path, changes, small=True), tmp_path / "run").test)
    with pytest.raises(RecipeError, match=r"model\.name is 'fnoo': .*did you mean fno"):
        Recipe.load(data.path, ["model.name=fnoo"], small=True)
    with pytest.raises(RecipeError, match=r"model is 'fno': expected a section"):
        Recipe.load(data.path, ["model=fno"], small=True)


def test_the_task_decides(tmp_path: Path) -> None:
    frames = derive(tiny.series(tmp_path / "frames").path)
    assert frames["rollout"] == {"history": 3}
    assert frames["data"]["guess"] == "affine"
    timed = tiny.series(tmp_path / "timed", "timed")
    assert "rollout" not in derive(timed.path)
    assert cut(timed, Recipe.load(timed.path)).train.times is not None


def changed(data: Dataset, path: Path, **changes: object) -> Dataset:
    arrays: dict[ArrayName, Array] = {name: np.array(a) for name, a in data.arrays.items()}
    info = data.info.model_copy(update={"files": {}, **changes})
    if len(info.outputs) == 2:
        arrays["outputs"] = np.concatenate((arrays["outputs"], 1e-3 * arrays["outputs"]), -1)
    return write_dataset(path, info, arrays)


def test_several_outputs_count_alike_and_a_mesh_is_told_of(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    outputs = (Channel(name="large"), Channel(name="small"))
    mesh = data.info.mesh.model_copy(update={"kind": "structured"})
    recipe = Recipe.load(changed(data, tmp_path / "two", outputs=outputs, mesh=mesh).path)
    assert recipe.train.loss == "channels"
    assert recipe.model.config.model_dump()["position"] == "mesh"


def test_a_loss_by_channel_is_the_mean_of_its_channels(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    outputs = (Channel(name="large"), Channel(name="small"))
    two = changed(data, tmp_path / "two", outputs=outputs)
    fit(tiny.recipe(two.path), tmp_path / "run")
    operator = Operator.load(tmp_path / "run")
    batch = View(two, two.rows("test")).read(np.arange(4))
    with torch.no_grad():
        answer = operator.answer(batch)
        by_channel = sample_losses(operator, batch, by_channel=True)
        joint = sample_losses(operator, batch)
    torch.testing.assert_close(by_channel, channel_errors(answer, batch.target).mean(1))
    torch.testing.assert_close(joint, relative_l2(answer, batch.target))
    assert not torch.allclose(by_channel, joint)


def test_one_frame_is_no_series(tmp_path: Path) -> None:
    data = tiny.series(tmp_path / "one", frames=1)
    with pytest.raises(DataError, match="has 1 frame, a roll-out needs at least two"):
        Recipe.load(data.path)


def test_a_directory_without_data_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no dataset\.json"):
        Recipe.load(tmp_path)


def test_deriving_does_not_load_torch(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    code = (
        "import sys; from ono.train.recipe import Recipe; "
        f"Recipe.load({str(data.path)!r}); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
