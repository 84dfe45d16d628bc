"""What is kept of a finished cell so that it can be drawn: small, whole, and true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny

from ono.data.info import Channel, Info, Mesh, Provenance
from ono.data.store import write_dataset
from ono.evaluate.metrics import relative_l2
from ono.experiments.ledger import Line
from ono.experiments.pictures import Picture, at_resolutions, at_times, picture_file
from ono.train.prepare import cut, new_operator
from ono.train.recipe import Recipe

LIMIT = 300_000


def test_a_series_keeps_seen_and_unseen_times(tmp_path: Path) -> None:
    data = tiny.series(tmp_path / "data", frames=12)
    content = tiny.content(tmp_path / "data")
    content["rollout"] = {"history": 2, "train_steps": 7}
    recipe = Recipe.from_mapping(content)
    parts = cut(data, recipe)
    operator = new_operator(recipe, parts.train).eval()
    picture = at_times("heat/ono", operator, parts.test, 18, 7)
    assert [frame.title for frame in picture.frames] == [
        f"t = {0.02 * (2 + i):.4g}" for i in (0, 3, 6, 7, 9)
    ]
    groups = [frame.group for frame in picture.frames]
    assert groups == ["seen times"] * 3 + ["unseen times"] * 2
    batch = parts.test.read(np.array([2]))
    answer = operator.answer(batch).detach()
    last = picture.frames[-1]
    np.testing.assert_allclose(last.truth.ravel(), batch.target[0, -1, :, 0], rtol=1e-6)
    error = (answer - batch.target)[0, -1, :, 0].numpy()
    np.testing.assert_allclose(last.error.ravel(), error, rtol=1e-4, atol=1e-6)
    expected = float(relative_l2(answer[:, -1], batch.target[:, -1])[0])
    assert last.relative_error == pytest.approx(expected)


@pytest.fixture(scope="module")
def fine(tmp_path_factory: pytest.TempPathFactory) -> Picture:
    """A sample at the six resolutions of the paper."""
    path, side, samples = tmp_path_factory.mktemp("fine") / "data", 421, 3
    axis = np.linspace(0, 1, side, dtype=np.float32)
    coords = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    waves = np.arange(1, samples + 1, dtype=np.float32)[:, None, None]
    inputs = np.sin(waves * coords[None, :, :1])
    outputs = np.cos(3 * waves * coords[None, :, :1]) * coords[None, :, 1:]
    info = Info(
        name="fine",
        task="steady",
        mesh=Mesh(kind="grid", dim=2, shape=(side, side), shared=True),
        inputs=(Channel(name="a"),),
        outputs=(Channel(name="u", unit="m"),),
        samples=samples,
        splits={"train": (0, 1), "validation": (1, 2), "test": (2, 3)},
        provenance=Provenance(maker="tests"),
    )
    data = write_dataset(path, info, {"coords": coords, "inputs": inputs, "outputs": outputs})
    content = tiny.content(path)
    content["data"]["resolution"] = 43
    recipe = Recipe.from_mapping(content)
    parts = cut(data, recipe)
    operator = new_operator(recipe, parts.train).eval()
    return at_resolutions("darcy/ono", operator, parts.test, 2, 43, (61, 85, 141, 211, 421))


def test_the_resolutions_of_the_paper_fit_into_a_small_file(fine: Picture, tmp_path: Path) -> None:
    assert [frame.title.split(" ")[0] for frame in fine.frames] == [
        "43", "61", "85", "141", "211", "421",
    ]  # fmt: skip
    assert [frame.truth.shape[0] for frame in fine.frames] == [43, 61, 85, 71, 106, 106]
    corners = [frame.truth[[0, 0, -1, -1], [0, -1, 0, -1]] for frame in fine.frames]
    for other in corners[1:]:
        np.testing.assert_allclose(other, corners[0], rtol=1e-5)
    fine.save(tmp_path / "fine.safetensors")
    assert (tmp_path / "fine.safetensors").stat().st_size < LIMIT


def test_what_is_kept_is_read_again(fine: Picture, tmp_path: Path) -> None:
    file = tmp_path / "pictures" / "fine.safetensors"
    fine.save(file)
    again = Picture.load(file)
    assert (again.name, again.quantity, again.unit, again.row) == ("darcy/ono", "u", "m", 2)
    for before, after in zip(fine.frames, again.frames, strict=True):
        assert (after.title, after.group) == (before.title, before.group)
        assert after.relative_error == before.relative_error
        np.testing.assert_allclose(after.truth, before.truth, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(after.error, before.error, rtol=1e-3, atol=1e-6)
    assert [path.name for path in file.parent.iterdir()] == [file.name], "nothing is left beside"


def test_budgets_and_data_have_files_of_their_own(tmp_path: Path) -> None:
    def file(recipe_sha256: str, data_id: str) -> Path:
        line = Line(
            experiment="x",
            recipe="darcy/ono",
            recipe_sha256=recipe_sha256,
            data_id=data_id,
            data="made",
            seed=0,
            budget="short",
            status="complete",
        )
        return picture_file(tmp_path, line)

    assert len({file("a" * 9, "b"), file("c" * 9, "b"), file("a" * 9, "d")}) == 3
    assert file("a" * 9, "b").name == "darcy-ono-0-aaaaaaaa-b.safetensors"
