from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from ono.data.batches import load
from ono.data.info import Array, ArrayName, Channel, Info, Mesh, Provenance
from ono.data.store import Dataset, write_dataset
from ono.domain import Domain
from ono.errors import CheckpointError, DataError, ShapeError
from ono.evaluate.metrics import relative_l2
from ono.evaluate.operator import Operator
from ono.evaluate.predict import predict, scattered_points
from ono.train.evaluations import Evaluator
from ono.train.loop import fit
from ono.train.prepare import cut
from ono.train.recipe import Recipe

SIDE = tiny.SIDE


def trained(folder: Path, **model: Any) -> Operator:
    tiny.dataset(folder / "data")
    content = tiny.content(folder / "data", epochs=2)
    fit(Recipe.from_mapping(content | {"model": tiny.MODEL | model}), folder / "run")
    return Operator.load(folder / "run")


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return trained(tmp_path_factory.mktemp("predict"))


@pytest.fixture(scope="module")
def crossing(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return trained(tmp_path_factory.mktemp("predict"), query="cross")


@pytest.fixture
def values() -> Array:
    return tiny.fields(seed=3)[1][:11]


def grid(samples: int) -> Domain:
    return Domain.grid((SIDE, SIDE), batch=samples)


def test_every_layout_gives_the_same_numbers_in_its_own_shape(
    operator: Operator, values: Array
) -> None:
    with torch.no_grad():
        expected = operator(grid(11), torch.from_numpy(values)).numpy()
    assert np.abs(expected).max() > 0.01
    coords = tiny.fields()[0]
    layouts: list[tuple[Array, dict[str, Array]]] = [
        (values, {}),
        (values.reshape(11, SIDE, SIDE), {}),
        (values.reshape(11, SIDE, SIDE, 1), {}),
        (values.astype(np.float64), {}),
        (np.asfortranarray(values), {}),
        (values, {"coords": coords}),
        (values, {"coords": np.repeat(coords[None], 11, 0)}),
    ]
    for inputs, options in layouts:
        got = predict(operator, inputs, **options)  # type: ignore[arg-type]
        assert got.values.shape == inputs.shape
        assert got.outside == 0
        np.testing.assert_allclose(got.values.reshape(expected.shape), expected, atol=2e-6)


def test_the_batch_size_changes_nothing(operator: Operator, values: Array) -> None:
    parts = [predict(operator, values, batch=size).values for size in (1, 4, 100)]
    np.testing.assert_allclose(parts[0], parts[2], atol=2e-6)
    np.testing.assert_allclose(parts[1], parts[2], atol=2e-6)


def test_another_resolution_is_a_grid_of_its_own(operator: Operator) -> None:
    axis = np.linspace(0, 1, 17, dtype=np.float32)
    field = np.sin(3 * axis)[None, :, None] * np.cos(2 * axis)[None, None]
    fine = predict(operator, field).values
    assert fine.shape == (1, 17, 17)
    domain = Domain.grid((17, 17))
    with torch.no_grad():
        expected = operator(domain, torch.from_numpy(field.reshape(1, -1, 1).copy()))
    np.testing.assert_allclose(fine.reshape(1, -1, 1), expected.numpy(), atol=2e-6)


def test_integers_are_numbers_too(operator: Operator) -> None:
    ones = np.ones((2, SIDE, SIDE), dtype=np.int64)
    np.testing.assert_array_equal(
        predict(operator, ones).values, predict(operator, ones.astype(np.float32)).values
    )


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_queries_do_not_depend_on_the_chunk(operator: Operator, chunk: int) -> None:
    values = torch.from_numpy(tiny.fields()[1][:3])
    query = Domain(scattered_points(operator, 50).expand(3, -1, -1))
    with torch.no_grad():
        at_once = operator(grid(3), values, query=query)
    in_parts = operator.at(grid(3), values, query, chunk=chunk)
    assert in_parts.shape == (3, 50, 1)
    torch.testing.assert_close(in_parts, at_once, rtol=0, atol=1e-6)


def test_queries_follow_their_order_and_may_repeat(operator: Operator, values: Array) -> None:
    points = scattered_points(operator, 20).numpy()
    order = np.random.default_rng(0).permutation(20)
    plain = predict(operator, values, query=points).values
    mixed = predict(operator, values, query=np.concatenate([points[order], points[:1]])).values
    np.testing.assert_allclose(mixed[:, :20], plain[:, order], atol=1e-6)
    np.testing.assert_allclose(mixed[:, 20], plain[:, 0], atol=1e-6)


def test_queries_at_the_grid_give_what_the_grid_gives(operator: Operator, values: Array) -> None:
    here = predict(operator, values).values
    asked = predict(operator, values, query=tiny.fields()[0]).values
    np.testing.assert_allclose(asked, here, atol=2e-6)


def test_a_model_whose_queries_see_each_other_gets_them_at_once(crossing: Operator) -> None:
    values = torch.from_numpy(tiny.fields()[1][:3])
    query = Domain(scattered_points(crossing, 50).expand(3, -1, -1))
    with torch.no_grad():
        at_once = crossing(grid(3), values, query=query)
    torch.testing.assert_close(crossing.at(grid(3), values, query, chunk=7), at_once)


def test_points_outside_are_counted(operator: Operator, values: Array) -> None:
    query = np.array([[0.5, 0.5], [1.0, 1.0], [1.01, 0.5], [0.2, -0.1], [3.0, 3.0]])
    got = predict(operator, values[:2], query=query)
    assert got.outside == 3
    assert np.isfinite(got.values).all()


def test_scattered_points_fill_the_box_and_repeat(operator: Operator) -> None:
    points = scattered_points(operator, 500)
    assert torch.equal(points, scattered_points(operator, 500))
    assert not torch.equal(points, scattered_points(operator, 500, seed=1))
    assert points.amin() >= 0
    assert points.amax() <= 1
    assert (points.std(0) > 0.25).all()


NAN = float("nan")
MISTAKES: dict[str, tuple[dict[str, Array], str]] = {
    "one sample": (
        {"inputs": np.zeros((SIDE, SIDE))},
        r"must be \[samples x y channels\] or, if coords are given, \[samples points channels\], "
        r"with 1 channels \(source\), got \[9, 9\]",
    ),
    "channels": ({"inputs": np.zeros((2, SIDE, SIDE, 2))}, r"with 1 channels \(source\)"),
    "no grid": ({"inputs": np.zeros((2, 80, 1))}, r"got \[2, 80, 1\]"),
    "empty": ({"inputs": np.zeros((0, SIDE, SIDE))}, r"empty, got \[0, 9, 9\]"),
    "text": ({"inputs": np.array([["x"]])}, "must be numbers"),
    "large": ({"inputs": np.full((2, SIDE, SIDE), 1e200)}, "too large for float32; scale"),
    "flat coords": (
        {"inputs": np.zeros((2, 81, 1)), "coords": np.zeros(81)},
        r"coords must be \[points 2\], got \[81\]",
    ),
    "one number": (
        {"inputs": np.zeros(9), "coords": np.zeros((3, 3, 2))},
        r"inputs must be \[samples x y channels\].*got \[9\]",
    ),
    "warped grid": (
        {"inputs": np.zeros((2, 3, 3)), "coords": np.random.default_rng(0).random((3, 3, 2))},
        r"coords of shape \[3, 3\] are no uniform ascending grid",
    ),
    "nan": ({"inputs": np.full((2, SIDE, SIDE), NAN)}, r"NaN .* in samples \[0, 1\]"),
    "coords": (
        {"inputs": np.zeros((2, 81, 1)), "coords": np.zeros((80, 2))},
        r"coords must be \[81 2\] or \[2 81 2\]",
    ),
    "coords nan": (
        {"inputs": np.zeros((2, 81, 1)), "coords": np.full((81, 2), NAN)},
        "coords hold NaN",
    ),
    "query rank": (
        {"inputs": np.zeros((2, 81, 1)), "query": np.zeros(2)},
        r"query points must be \[points 2\], got \[2\]",
    ),
    "query empty": (
        {"inputs": np.zeros((2, 81, 1)), "query": np.zeros((0, 2))},
        r"query points must be \[points 2\], got \[0, 2\]",
    ),
    "query nan": (
        {"inputs": np.zeros((2, 81, 1)), "query": np.array([[0, 0], [NAN, 0]])},
        r"query points hold NaN .* in rows \[1\]",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(operator: Operator, name: str) -> None:
    arguments, message = MISTAKES[name]
    with pytest.raises(ShapeError, match=message):
        predict(operator, **arguments)  # type: ignore[arg-type]


def test_a_saved_operator_gives_the_same_bits_in_another_process(
    operator: Operator, values: Array, tmp_path: Path
) -> None:
    operator.save(tmp_path / "saved")
    np.save(tmp_path / "inputs.npy", values)
    np.save(tmp_path / "expected.npy", predict(operator, values).values)
    code = f"""
import numpy as np
import torch
from ono.evaluate.metrics import relative_l2
from ono.evaluate.operator import Operator
from ono.evaluate.predict import predict
torch.set_num_threads({torch.get_num_threads()})
before = torch.get_rng_state()
operator = Operator.load({str(tmp_path / "saved")!r})
assert torch.equal(before, torch.get_rng_state()), "loading drew random numbers"
got = predict(operator, np.load({str(tmp_path / "inputs.npy")!r})).values
expected = np.load({str(tmp_path / "expected.npy")!r})
assert got.tobytes() == expected.tobytes(), abs(got - expected).max()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    again = Operator.load(tmp_path / "saved").state_dict()
    assert list(again) == list(operator.state_dict())
    assert all(torch.equal(value, again[name]) for name, value in operator.state_dict().items())


def card(operator: Operator, path: Path, **changes: Any) -> Path:
    operator.save(path)
    file = path / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, r"model\.json has format 2, this version of ono reads format 1"),
        ({"format": None}, r"has format None"),
        ({"model": "onno"}, r"names the model 'onno', .* did you mean ono\?"),
        ({"mesh": 5}, r"model\.json is not valid"),
        ({"extra": 5}, r"model\.json is not valid"),
    ],
)
def test_a_card_this_version_does_not_know_is_refused(
    operator: Operator, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        Operator.load(card(operator, tmp_path, **changes))


def test_a_card_that_does_not_fit_the_weights_is_refused(
    operator: Operator, tmp_path: Path
) -> None:
    config = operator.card.config | {"width": 32}
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be loaded"):
        Operator.load(card(operator, tmp_path, config=config))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}'])
def test_a_broken_card_is_refused(operator: Operator, tmp_path: Path, text: str) -> None:
    operator.save(tmp_path)
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"model\.json"):
        Operator.load(tmp_path)


def test_a_config_out_of_range_is_refused(operator: Operator, tmp_path: Path) -> None:
    config = operator.card.config | {"width": -1}
    with pytest.raises(CheckpointError, match=r"model\.json"):
        Operator.load(card(operator, tmp_path, config=config))


def test_nothing_to_load_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no trained operator at"):
        Operator.load(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best.json").write_text("{")
    with pytest.raises(CheckpointError, match="no trained operator at"):
        Operator.load(tmp_path)


def test_predicting_the_test_rows_gives_the_reported_error(tmp_path: Path) -> None:
    """The same weights, quadrature and normalisation on the way from files as in training."""
    data = tiny.dataset(tmp_path / "data")
    result = fit(tiny.recipe(tmp_path / "data", epochs=2), tmp_path / "run")
    rows = list(data.rows("test"))
    shape = data.info.mesh.shape
    assert shape is not None
    inputs = np.array(data.inputs[rows]).reshape(len(rows), *shape, -1)
    fields = predict(Operator.load(result.path), inputs).values.reshape(len(rows), -1, 1)
    errors = relative_l2(torch.from_numpy(fields), torch.from_numpy(np.array(data.outputs[rows])))
    assert float(errors.mean()) == pytest.approx(result.test, rel=1e-5)


def test_geometry_alone_needs_no_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    coords = rng.random((12, 30, 2), np.float32)
    info = Info(
        name="geometry",
        task="steady",
        mesh=Mesh(kind="cloud", dim=2, shared=False),
        outputs=(Channel(name="stress"),),
        samples=12,
        splits={"train": (0, 8), "validation": (8, 10), "test": (10, 12)},
        provenance=Provenance(maker="test"),
    )
    arrays: dict[ArrayName, Array] = {
        "coords": coords,
        "inputs": np.zeros((12, 30, 0), np.float32),
        "outputs": np.sin(3 * coords[..., :1]) + coords.mean((1, 2), keepdims=True),
    }
    write_dataset(tmp_path / "data", info, arrays)
    result = fit(tiny.recipe(tmp_path / "data", epochs=2), tmp_path / "run")
    operator = Operator.load(result.path)
    fields = predict(operator, coords=coords[10:]).values
    errors = relative_l2(torch.from_numpy(fields), torch.from_numpy(arrays["outputs"][10:]))
    assert float(errors.mean()) == pytest.approx(result.test, rel=1e-5)
    with pytest.raises(ShapeError, match="needs coords"):
        predict(operator)


def mesh_data(folder: Path, kind: str, coords: Array, weights: Array | None = None) -> Path:
    """Store 20 samples of u = x a on 7x5 points and train on them for a moment."""
    rng = np.random.default_rng(0)
    a = rng.random((20, 35, 1)).astype(np.float32)
    info = Info(
        name=kind,
        task="steady",
        mesh=Mesh.model_validate(
            {"kind": kind, "dim": 2, "shape": None if kind == "cloud" else (7, 5), "shared": True}
        ),
        inputs=(Channel(name="a"),),
        outputs=(Channel(name="u"),),
        samples=20,
        splits={"train": (0, 12), "validation": (12, 16), "test": (16, 20)},
        provenance=Provenance(maker="test"),
    )
    arrays: dict[ArrayName, Array] = {
        "coords": coords.astype(np.float32),
        "inputs": a,
        "outputs": a * (1 + coords[None, :, :1].astype(np.float32)),
    }
    if weights is not None:
        arrays["weights"] = weights.astype(np.float32)
    write_dataset(folder / "data", info, arrays)
    fit(tiny.recipe(folder / "data", epochs=1), folder / "run")
    return folder / "run"


def grid_coords() -> Array:
    axes = np.meshgrid(np.linspace(0, 1, 7), np.linspace(0, 2, 5), indexing="ij")
    return np.stack(axes, -1).reshape(-1, 2)


@pytest.mark.parametrize("kind", ["structured", "cloud"])
def test_trained_weights_must_be_given_again_and_give_the_reported_error(
    kind: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    coords = grid_coords() + 0.05 * rng.random((35, 2))
    weights = 1 + 9 * rng.random(35)
    run = mesh_data(tmp_path, kind, coords, weights)
    operator, data = Operator.load(run), Dataset.open(tmp_path / "data")
    rows = list(data.rows("test"))
    inputs, outputs = np.array(data.inputs[rows]), torch.from_numpy(np.array(data.outputs[rows]))
    with pytest.raises(ShapeError, match=r"give coords|scattered points"):
        predict(operator, inputs)
    with pytest.raises(ShapeError, match="trained with quadrature weights"):
        predict(operator, inputs, coords=coords)
    fields = predict(operator, inputs, coords=coords, weights=weights).values
    errors = relative_l2(torch.from_numpy(fields), outputs)
    reported = json.loads((run / "result.json").read_text())["test"]
    assert float(errors.mean()) == pytest.approx(reported, rel=1e-5)


def test_a_rectangular_grid_is_recognised_at_any_resolution(tmp_path: Path) -> None:
    operator = Operator.load(mesh_data(tmp_path, "grid", grid_coords()))
    axes = np.meshgrid(np.linspace(0, 1, 13), np.linspace(0, 2, 9), indexing="ij")
    coords = np.stack(axes, -1).reshape(-1, 2)
    field = np.random.default_rng(2).random((2, 13, 9)).astype(np.float32)
    whole = predict(operator, field).values.reshape(2, -1, 1)
    flat = predict(operator, field.reshape(2, -1, 1), coords=coords).values
    np.testing.assert_allclose(flat, whole, atol=2e-6)


def test_coords_of_a_grid_may_have_its_axes(tmp_path: Path) -> None:
    operator = Operator.load(mesh_data(tmp_path, "grid", grid_coords()))
    field = np.random.default_rng(2).random((3, 7, 5)).astype(np.float32)
    flat = field.reshape(3, 35)
    whole = predict(operator, field).values
    coords = grid_coords()
    for values, places in (
        (field, coords.reshape(7, 5, 2)),
        (field[..., None], coords.reshape(7, 5, 2)),
        (field, np.tile(coords.reshape(7, 5, 2), (3, 1, 1, 1))),
        (field, coords),
        (flat, coords.reshape(7, 5, 2)),
        (flat, coords),
    ):
        made = predict(operator, values, coords=places).values
        assert made.shape == values.shape
        np.testing.assert_allclose(made.reshape(whole.shape), whole, atol=2e-6)


def test_one_channel_of_a_cloud_needs_no_axis(tmp_path: Path) -> None:
    coords = np.random.default_rng(1).random((35, 2))
    operator = Operator.load(mesh_data(tmp_path, "cloud", coords))
    values = np.random.default_rng(2).random((3, 35))
    made = predict(operator, values, coords=coords).values
    assert made.shape == (3, 35)
    whole = predict(operator, values[..., None], coords=coords).values
    np.testing.assert_array_equal(made, whole[..., 0])


@pytest.mark.parametrize("kind", ["grid", "structured", "cloud"])
def test_the_coordinate_of_a_line_needs_no_axis(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    axis = np.linspace(0, 1, 12) ** (1 if kind == "grid" else 2)
    a = rng.random((20, 12, 1)).astype(np.float32)
    info = Info(
        name="line",
        task="steady",
        mesh=Mesh.model_validate(
            {"kind": kind, "dim": 1, "shape": None if kind == "cloud" else (12,), "shared": True}
        ),
        inputs=(Channel(name="a"),),
        outputs=(Channel(name="u"),),
        samples=20,
        splits=tiny.SPLITS,
        provenance=Provenance(maker="test"),
    )
    coords = axis[:, None].astype(np.float32)
    write_dataset(tmp_path / "data", info, {"coords": coords, "inputs": a, "outputs": 2 * a})
    fit(tiny.recipe(tmp_path / "data", epochs=1), tmp_path / "run")
    operator = Operator.load(tmp_path / "run")
    whole = predict(operator, a[:3], coords=coords).values
    for values in (a[:3], a[:3, :, 0]):
        for places in (axis, coords, np.tile(axis, (3, 1))):
            made = predict(operator, values, coords=places).values
            assert made.shape == values.shape
            np.testing.assert_allclose(made.reshape(whole.shape), whole, atol=1e-6)
    if kind == "grid":
        np.testing.assert_allclose(predict(operator, a[:3, :, 0]).values, whole[..., 0], atol=1e-6)


def test_what_is_called_a_grid_and_is_none_is_refused(tmp_path: Path) -> None:
    swapped = grid_coords().reshape(7, 5, 2).transpose(1, 0, 2).reshape(-1, 2)
    with pytest.raises(DataError, match="call the mesh structured"):
        mesh_data(tmp_path, "grid", swapped)


def test_a_crossing_operator_learns_its_query_encoder(crossing: Operator) -> None:
    fresh = Operator(crossing.card)
    trained = dict(crossing.named_parameters())
    moved = [n for n, p in fresh.named_parameters() if "encoder_query" in n]
    assert moved
    assert float(trained["model.encoder_query.0.bias"].detach().abs().sum()) > 0


def test_points_outside_the_training_box_are_counted(operator: Operator) -> None:
    values = np.ones((1, 3, 1), np.float32)
    coords = np.array([[0.5, 0.5], [10.0, 0.5], [0.1, -3.0]])
    assert predict(operator, values, coords=coords).outside == 2


def test_a_gradient_term_and_scattered_errors_need_a_grid(tmp_path: Path) -> None:
    run = mesh_data(tmp_path, "cloud", grid_coords())
    with pytest.raises(DataError, match="is no grid: the truth between its nodes is not known"):
        Evaluator(run).at_points(np.array([[0.5, 0.5]]))
    recipe = tiny.recipe(tmp_path / "data", epochs=1, gradient_loss=0.1)
    with pytest.raises(DataError, match=r"gradient_loss is 0\.1.*point cloud"):
        fit(recipe, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_other_data_is_not_evaluated(tmp_path: Path) -> None:
    tiny.dataset(tmp_path / "data")
    fit(tiny.recipe(tmp_path / "data", epochs=1), tmp_path / "run")
    shutil.rmtree(tmp_path / "data")
    tiny.dataset(tmp_path / "data", seed=1)
    with pytest.raises(CheckpointError, match="trained on other data"):
        Evaluator(tmp_path / "run")


@pytest.fixture(scope="module")
def forecaster(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    folder = tmp_path_factory.mktemp("forecast")
    data = tiny.series(folder / "data")
    fit(tiny.recipe(data.path), folder / "run")
    return Operator.load(folder / "run")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    folder = tmp_path_factory.mktemp("timed")
    data = tiny.series(folder / "data", "timed")
    fit(tiny.recipe(data.path), folder / "run")
    return Operator.load(folder / "run")


def test_known_frames_are_continued_in_their_own_layout(forecaster: Operator) -> None:
    frames = np.random.default_rng(0).standard_normal((3, 3, SIDE, SIDE)).astype(np.float32)
    made = predict(forecaster, history=frames).values
    assert made.shape == (3, 3, SIDE, SIDE)
    flat = frames.reshape(3, 3, -1, 1)
    np.testing.assert_allclose(
        predict(forecaster, history=flat).values[..., 0],
        made.reshape(3, 3, -1),
        rtol=1e-5,
        atol=1e-6,
    )
    longer = predict(forecaster, history=frames, steps=5).values
    np.testing.assert_allclose(longer[:, :3], made, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        first = forecaster(grid(3), torch.from_numpy(flat[..., 0]).transpose(1, 2))
    np.testing.assert_allclose(
        made[:, 0].reshape(3, -1), first[..., 0].numpy(), rtol=1e-5, atol=1e-6
    )


@pytest.fixture(scope="module")
def curved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Operator, Dataset]:
    """Train on a structured mesh of 4 x 6 nodes, of which every sample has its own."""
    folder, random = tmp_path_factory.mktemp("curved"), np.random.default_rng(0)
    nodes = np.stack(np.meshgrid(np.arange(4.0), np.arange(6.0), indexing="ij"), -1)
    coords = nodes * (1 + random.random((20, 1, 1, 2)))
    inputs = coords[..., :1] * random.random((20, 1, 1, 1))
    info = Info(
        name="curved",
        task="steady",
        mesh=Mesh(kind="structured", dim=2, shape=(4, 6), shared=False),
        inputs=(Channel(name="a"),),
        outputs=(Channel(name="u"), Channel(name="v")),
        samples=20,
        splits=tiny.SPLITS,
        provenance=Provenance(maker="tests"),
    )
    outputs = np.concatenate((inputs**2, coords[..., 1:]), -1)
    fields: dict[ArrayName, Array] = {"coords": coords, "inputs": inputs, "outputs": outputs}
    flat = {name: a.reshape(20, 24, -1).astype(np.float32) for name, a in fields.items()}
    data = write_dataset(folder / "data", info, flat)
    fit(tiny.recipe(data.path, epochs=1), folder / "run")
    return Operator.load(folder / "run"), data


def test_a_structured_mesh_may_have_its_axes(curved: tuple[Operator, Dataset]) -> None:
    operator, data = curved
    rows = slice(16, 19)
    inputs, coords = data.inputs[rows], data.coords[rows]
    expected = predict(operator, inputs, coords=coords).values
    assert expected.shape == (3, 24, 2)
    folded, place = inputs.reshape(3, 4, 6, 1), coords.reshape(3, 4, 6, 2)
    for given in (folded, folded[..., 0]):
        for where in (place, coords):
            made = predict(operator, given, coords=where).values
            assert made.shape == (3, 4, 6, 2)
            np.testing.assert_array_equal(made.reshape(expected.shape), expected)
    np.testing.assert_array_equal(predict(operator, inputs, coords=place).values, expected)
    shared = predict(operator, folded[:1], coords=place[0]).values
    np.testing.assert_allclose(shared.reshape(1, 24, 2), expected[:1], rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match=r"shape \(4, 6\), coords on one of shape \(6, 4\)"):
        predict(operator, folded, coords=coords.reshape(3, 6, 4, 2))
    with pytest.raises(ShapeError, match=r"\[samples i j channels\]"):
        predict(operator, folded[:, :3], coords=place)


def test_a_periodic_grid_keeps_its_period_at_any_resolution(tmp_path: Path) -> None:
    random, nodes = np.random.default_rng(0), 8
    axis = 2.0 + 4.0 * np.arange(nodes) / nodes
    coords = np.stack(np.meshgrid(axis, 10 * axis, indexing="ij"), -1).reshape(-1, 2)
    inputs = random.random((20, nodes**2, 1))
    info = Info(
        name="torus",
        task="steady",
        mesh=Mesh(kind="grid", dim=2, shape=(nodes, nodes), shared=True, periodic=True),
        inputs=(Channel(name="a"),),
        outputs=(Channel(name="u"),),
        samples=20,
        splits=tiny.SPLITS,
        provenance=Provenance(maker="tests"),
    )
    arrays: dict[ArrayName, Array] = {"coords": coords, "inputs": inputs, "outputs": inputs**2}
    data = write_dataset(
        tmp_path / "data", info, {n: a.astype(np.float32) for n, a in arrays.items()}
    )
    fit(tiny.recipe(data.path, epochs=1), tmp_path / "run")
    operator = Operator.load(tmp_path / "run")
    for finer in (4, 8, 12):
        axis = 2.0 + 4.0 * np.arange(finer) / finer
        where = np.stack(np.meshgrid(axis, 10 * axis, indexing="ij"), -1).reshape(-1, 2)
        values = random.random((2, finer, finer, 1))
        made = predict(operator, values)
        told = predict(operator, values.reshape(2, -1, 1), coords=where)
        assert made.outside == told.outside == 0
        np.testing.assert_allclose(made.values.reshape(2, -1, 1), told.values, rtol=1e-4, atol=1e-5)
    for memory in ("resident", "streamed"):
        source = load(cut(data, tiny.recipe(data.path)).test, torch.device("cpu"), memory)
        assert all(batch.domain.periodic for batch in source.batches(np.arange(4), 2))
    beyond = np.array([[6.1, 30.0], [5.9, 30.0]])
    assert predict(operator, values, query=beyond).outside == 1


def test_a_timed_operator_predicts_at_the_times_asked_for(timed: Operator, values: Array) -> None:
    made = predict(timed, values.reshape(-1, SIDE, SIDE)).values
    assert made.shape == (11, 6, SIDE, SIDE)
    two = predict(timed, values, times=np.array([0.02, 0.1])).values
    expected = made[:, [1, 5]].reshape(11, 2, -1, 1)
    np.testing.assert_allclose(two, expected, rtol=1e-4, atol=1e-5)
    where = Domain.grid((SIDE, SIDE)).coords[0].numpy()
    there = predict(timed, values, query=where[:7]).values
    np.testing.assert_allclose(there, made.reshape(11, 6, -1, 1)[:, :, :7], rtol=1e-3, atol=1e-4)


def test_what_does_not_belong_to_the_task_is_refused(
    operator: Operator, forecaster: Operator, timed: Operator, values: Array
) -> None:
    frames = np.zeros((1, 2, SIDE, SIDE))
    with pytest.raises(ShapeError, match="takes no history"):
        predict(operator, values, history=frames)
    with pytest.raises(ShapeError, match="takes no times"):
        predict(operator, values, times=np.zeros(2))
    with pytest.raises(ShapeError, match="continues a series"):
        predict(forecaster)
    with pytest.raises(ShapeError, match="3 frames as in training"):
        predict(forecaster, history=frames)
    with pytest.raises(ShapeError, match="times must be finite"):
        predict(timed, values, times=np.array([np.nan]))
