"""Operators whose network sees some of the points: trained, saved, and used like any other."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from ono.data.batches import load
from ono.data.info import Array, ArrayName, Channel, Info, Mesh, Provenance
from ono.data.store import Dataset, write_dataset
from ono.data.view import Batch
from ono.data.windows import with_history
from ono.domain import Domain
from ono.errors import DataError, RecipeError
from ono.evaluate.card import Card
from ono.evaluate.metrics import relative_l2
from ono.evaluate.operator import _MANY, Operator
from ono.evaluate.predict import predict
from ono.models.ono import ONO
from ono.train.execution import Epoch, execution
from ono.train.loop import fit
from ono.train.prepare import cut, new_operator
from ono.train.recipe import Recipe
from ono.train.step import Step

CPU = torch.device("cpu")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def ragged(path: Path) -> Dataset:
    """Write smooth loads at 30 to 60 points of their own in each sample, and half of them."""
    random = np.random.default_rng(0)
    counts = random.integers(30, 61, tiny.SAMPLES)
    offsets = np.concatenate(([0], counts.cumsum()))
    coords = random.random((offsets[-1], 2)).astype(np.float32)
    load = np.repeat(random.standard_normal((tiny.SAMPLES, 2)), counts, 0) * np.cos(2 * coords)
    inputs = load.sum(1, keepdims=True).astype(np.float32)
    info = Info(
        name="ragged",
        task="steady",
        mesh=Mesh(kind="cloud", dim=2, shared=False),
        inputs=(Channel(name="load", unit="N"),),
        outputs=(Channel(name="answer", unit="N"),),
        samples=tiny.SAMPLES,
        splits=tiny.SPLITS,
        provenance=Provenance(maker="tests"),
    )
    arrays: dict[ArrayName, Array] = {
        "coords": coords,
        "inputs": inputs,
        "outputs": inputs / 2,
        "offsets": offsets.astype(np.int64),
    }
    return write_dataset(path, info, arrays)


MAKERS: dict[str, Callable[[Path], Dataset]] = {
    "steady": tiny.dataset,
    "ragged": ragged,
    "timed": partial(tiny.series, task="timed"),
    "rollout": tiny.series,
}


def thinned(data: Dataset, thin: int | None = 2, model: Any = None, **train: Any) -> Recipe:
    content = tiny.content(data.path, **train)
    content["data"]["thin"] = thin
    return Recipe.from_mapping(content | ({} if model is None else {"model": model}))


@dataclass(frozen=True)
class Trained:
    """A run of one epoch with an affine guess, its operator from disk, and all test samples."""

    recipe: Recipe
    test: float
    operator: Operator
    batch: Batch


@pytest.fixture(scope="module", params=MAKERS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp(request.param)
    data = MAKERS[request.param](home / "data")
    content = tiny.content(data.path, epochs=1, batch=6)
    content["data"] |= {"thin": 2, "guess": "affine"}
    recipe = Recipe.from_mapping(content)
    result = fit(recipe, home / "run")
    batch = cut(data, recipe).test.read(np.arange(4))
    return Trained(recipe, result.test, Operator.load(home / "run"), batch)


def some_batch(data: Dataset, recipe: Recipe) -> Batch:
    return cut(data, recipe).test.read(np.arange(4))


def test_a_saved_operator_answers_at_all_points(trained: Trained, tmp_path: Path) -> None:
    operator, batch = trained.operator, trained.batch
    answer = operator.answer(batch).detach()
    assert answer.shape == batch.target.shape
    error = relative_l2(answer, batch.target, batch.domain.mask).mean()
    assert float(error) == pytest.approx(trained.test, rel=1e-5)
    operator.save(tmp_path)
    assert torch.equal(Operator.load(tmp_path).answer(batch), answer)


def test_samples_do_not_meet(trained: Trained) -> None:
    answer = trained.operator.answer(trained.batch)
    for row, part in enumerate(trained.batch.split(1)):
        alone = trained.operator.answer(part)[0]
        torch.testing.assert_close(alone, answer[row], rtol=1e-4, atol=1e-5)


def test_chunks_and_queries_agree_with_the_answer(trained: Trained) -> None:
    operator, batch = trained.operator, trained.batch
    domain, values, time = batch.domain, batch.values, None
    if batch.history is not None:
        values = with_history(values, batch.history)
    elif batch.times is not None:
        time = batch.times.expand(4, -1)
    answer = operator(domain, values, time=time)
    mask = torch.ones(4, domain.points, dtype=torch.bool) if domain.mask is None else domain.mask
    parts = operator.stream(domain, values, time=time, chunk=7)
    real = mask[:, None].expand(answer.shape[:-1]) if answer.ndim == 4 else mask
    torch.testing.assert_close(parts[real], answer[real], rtol=1e-4, atol=1e-5)
    query = Domain(domain.coords[:, 5:25])
    for there in (
        operator(domain, values, query=query, time=time),
        operator.at(domain, values, query, time=time, chunk=10),
    ):
        torch.testing.assert_close(there, answer[..., 5:25, :], rtol=1e-3, atol=1e-4)


def test_the_network_is_calibrated_on_what_it_sees(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    whole = ONO.observe

    def noted(self: ONO, domain: Domain, values: Tensor, **time: Any) -> None:
        seen.append(domain.points)
        whole(self, domain, values, **time)

    monkeypatch.setattr(ONO, "observe", noted)
    operator = copy.deepcopy(trained.operator)
    view = cut(Dataset.open(trained.recipe.data.path), trained.recipe).train
    operator.calibrate(load(view, CPU))
    longest = view.read(np.arange(len(view))).domain.points
    assert set(seen) == {25 if longest == 81 else -(-longest // 4)}
    # Done before by the run: the same statistics, hence the same answers.
    ours, theirs = (one.answer(trained.batch) for one in (operator, trained.operator))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_points_are_counted_after_thinning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny.dataset(tmp_path / "data")
    operator = new_operator(thinned(data), cut(data, thinned(data)).train)
    monkeypatch.setitem(_MANY, "cpu", 80)
    assert not operator.in_chunks(Domain.grid((9, 9)))
    assert operator.in_chunks(Domain.grid((9, 9), batch=4))


def test_predictions_on_other_grids_and_roll_outs_go_on(trained: Trained) -> None:
    operator = trained.operator
    if operator.card.mesh.kind == "cloud":
        cloud = np.random.default_rng(0).random((50, 2))
        assert predict(operator, np.ones((2, 50, 1)), coords=cloud).values.shape == (2, 50, 1)
    elif operator.card.task == "rollout":
        known = np.random.default_rng(0).random((2, 3, 12, 17))
        made = predict(operator, history=known, steps=5).values
        assert made.shape == (2, 5, 12, 17)
    else:
        made = predict(operator, np.ones((2, 12, 17))).values
        assert made.shape[-2:] == (12, 17)


def test_a_thinned_grid_is_the_coarser_grid_carried_back(tmp_path: Path) -> None:
    """With the weights of an operator trained on every second node the answers there are its."""
    data = tiny.dataset(tmp_path / "data")
    content = tiny.content(data.path, epochs=1)
    content["data"]["resolution"] = 5
    fit(Recipe.from_mapping(content), tmp_path / "coarse")
    coarse = Operator.load(tmp_path / "coarse")
    fine = Operator(coarse.card.model_copy(update={"thin": 2, "resolution": (9, 9)}))
    fine.load_state_dict(coarse.state_dict())
    batch = some_batch(data, thinned(data))
    nodes = torch.arange(81).reshape(9, 9)[::2, ::2].flatten()
    small = Domain(batch.domain.coords[:, nodes], (5, 5), Domain.grid((5, 5), batch=4).weights)
    torch.testing.assert_close(
        fine.eval()(batch.domain, batch.values)[:, nodes], coarse(small, batch.values[:, nodes])
    )


@pytest.mark.parametrize("name", ["fno", "deeponet", "lsm", "gnot"])
def test_every_operator_can_be_thinned(tmp_path: Path, name: str) -> None:
    data = tiny.dataset(tmp_path / "data")
    recipe = thinned(data, model={"name": name})
    operator = new_operator(recipe, cut(data, recipe).train).eval()
    operator.calibrate(load(cut(data, recipe).train, CPU))
    batch = some_batch(data, recipe)
    assert operator.answer(batch).shape == batch.target.shape


def saved_bytes(operator: Operator, batch: Batch) -> int:
    """Return what a forward pass keeps for backward; tensors that share memory count once."""
    kept: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        operator.train().answer(batch)
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}
    for known in [*operator.parameters(), *operator.buffers()]:
        storages.pop(known.untyped_storage().data_ptr(), None)
    return sum(storages.values())


@pytest.mark.parametrize("thin", [2, 3])
def test_memory_shrinks_with_the_kept_points(tmp_path: Path, thin: int) -> None:
    cloud = Dataset.open(tiny.cloud(tmp_path / "data").path)
    torch.manual_seed(0)
    domain = Domain(torch.rand(2, 2000, 2))
    batch = Batch(domain, torch.rand(2, 2000, 1), torch.rand(2, 2000, 1), torch.arange(2))
    view = cut(cloud, thinned(cloud, None)).train
    whole, some = (saved_bytes(new_operator(thinned(cloud, n), view), batch) for n in (None, thin))
    assert some < 1.3 * whole / thin**2, (whole, some)


@pytest.mark.parametrize(
    ("task", "epochs"),
    [
        ("ragged", 20),
        pytest.param("steady", 30, marks=pytest.mark.slow),
        pytest.param("rollout", 20, marks=pytest.mark.slow),
    ],
)
def test_thinned_operators_learn(tmp_path: Path, task: str, epochs: int) -> None:
    data = MAKERS[task](tmp_path / "data")
    recipe = thinned(data, epochs=epochs, batch=4, validate_every=epochs)
    result = fit(recipe, tmp_path / "run")
    parts = cut(data, recipe)
    test = parts.test.read(np.arange(len(parts.test)))
    nothing = new_operator(recipe, parts.train).normaliser.output_mean.expand_as(test.target)
    known = relative_l2(nothing, test.target, test.domain.mask).mean()
    assert result.test < 0.5 * float(known)


def test_a_card_without_the_field_sees_all_points(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path / "data")
    card = new_operator(thinned(data), cut(data, thinned(data)).train).card
    assert card.problem().shape == (5, 5)
    content = json.loads(card.model_dump_json())
    del content["thin"]
    old = Card.model_validate(content)
    assert old.thinning() is None
    assert old.problem().shape == (9, 9)


def test_what_cannot_be_thinned_is_refused(tmp_path: Path) -> None:
    data = tiny.cloud(tmp_path / "data")
    with pytest.raises(RecipeError, match=r"data\.thin is 1: .*greater than or equal to 2"):
        thinned(data, 1)
    recipe = thinned(data, 5)
    with pytest.raises(DataError, match=r"data\.thin is 5, .* too few of the 40 points"):
        new_operator(recipe, cut(data, recipe).train)
    grid = tiny.dataset(tmp_path / "grid")
    for every in (8, 1000):  # of 9 x 9 nodes only the corners
        recipe = thinned(grid, every)
        with pytest.raises(DataError, match=r"too few of the 9x9 points"):
            new_operator(recipe, cut(grid, recipe).train)


@pytest.mark.slow
@pytest.mark.parametrize("make", [tiny.dataset, tiny.cloud])
def test_compiled_steps_agree_with_eager_ones_when_thinned(
    make: Callable[[Path], Dataset], tmp_path: Path
) -> None:
    """In a process of its own: the hook that checks shapes breaks compilation."""
    data = make(tmp_path / "data")
    eager = fit(thinned(data, epochs=2), tmp_path / "eager")
    content = thinned(data, execution="compiled", epochs=2).model_dump(mode="json")
    script = """
import functools, json, sys, torch
from pathlib import Path
torch.compile = functools.partial(torch.compile, backend="aot_eager")
from ono.train.loop import fit
from ono.train.recipe import Recipe
fit(Recipe.from_mapping(json.loads(sys.argv[1])), Path(sys.argv[2]))
"""
    command = [sys.executable, "-c", script, json.dumps(content), str(tmp_path / "compiled")]
    subprocess.run(command, check=True, env={**os.environ, "ONO_TEST_COMPILE": "1"})
    ours, theirs = (
        [json.loads(line)["train"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (tmp_path / "compiled", eager.path)
    )
    assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("task", MAKERS)
def test_captured_steps_agree_with_eager_ones_when_thinned(task: str, tmp_path: Path) -> None:
    data, device = MAKERS[task](tmp_path / "data"), torch.device("cuda")
    losses: dict[str, list[float]] = {"eager": [], "captured": []}
    for form, found in losses.items():
        recipe = thinned(data, execution=form, device="cuda", batch=5, epochs=4)
        view = cut(data, recipe).train
        step = Step(new_operator(recipe, view).to(device), recipe)
        runner = execution(recipe, step, load(view, device))
        for number in range(4):
            for _ in runner.run(Epoch.of(recipe, number, len(view))):
                found.append(step.tally.take_mean_loss())
    assert len(losses["eager"]) == 12
    assert losses["captured"] == pytest.approx(losses["eager"], rel=1e-4)
