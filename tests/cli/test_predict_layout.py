"""What was imported can be predicted from: the same files, in the same order of axes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tiny
import typer
from typer.testing import CliRunner, Result

from ono.cli.data_import import import_data
from ono.cli.predict import predict as command
from ono.data.array_files import read_array
from ono.data.info import Array
from ono.errors import InputError
from ono.evaluate.operator import Operator
from ono.evaluate.predict import predict
from ono.train.loop import fit

SAMPLES, NX, NY, NT = 20, 9, 7, 4


def invoke(function: object, *words: object) -> Result:
    app = typer.Typer()
    app.command()(function)  # type: ignore[type-var]
    return CliRunner().invoke(app, list(map(str, words)))


class Home:
    """Arrays of a plate, in the order of the store: [samples x y], [samples x y time]."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        random = np.random.default_rng(0)
        self.x, self.y = np.linspace(0, 2, NX), np.linspace(0, 1, NY)
        x, y = np.meshgrid(self.x, self.y, indexing="ij")
        self.params: Array = random.random((SAMPLES, 2)).astype(np.float32)
        one, two = (self.params.T[:, :, None, None] * np.stack((x, y))[:, None]).astype("f4")
        self.one, self.two, self.sum = np.sin(3 * one), np.cos(two), np.sin(3 * one) * x + two
        self.frames = np.stack([self.one * 0.7**k for k in range(NT)], -1)
        self.save(
            plain={"one": self.one, "two": self.two, "sum": self.sum, "frames": self.frames},
            turned={"one": self.one.mT, "two": self.two.mT, "sum": self.sum.mT},
            first={"both": np.stack((self.one, self.two), 1), "sum": self.sum[:, None]},
            axes={"x": self.x, "y": self.y, "nodes": np.stack((x, y), -1).transpose(1, 0, 2)},
            numbers={"params": self.params.T},
        )

    def save(self, **files: dict[str, Array]) -> None:
        for name, arrays in files.items():
            np.savez(self.folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]

    def train(self, name: str, *options: str) -> Operator:
        words = [self.path(option) for option in options]
        done = invoke(import_data, *words, "--out", self.folder / f"{name}-data")
        assert done.exit_code == 0, done.exception
        fit(tiny.recipe(self.folder / f"{name}-data", epochs=1), self.folder / name)
        return Operator.load(self.folder / name)

    def path(self, word: str) -> str:
        """Return words that name a file with its folder."""
        return f"{self.folder}/{word}" if re.match(r"\w+\.np", word) else word

    def predict(self, run: str, *options: str, out: str = "made.npz") -> tuple[Array, str]:
        """Return what is in the first array of the answer, and what was printed."""
        words = [self.path(option) for option in options]
        file = self.folder / out
        done = invoke(command, self.folder / run, *words, "--out", file, "--device", "cpu")
        assert done.exit_code == 0, done.exception
        return read_array(file), done.output

    def refused(self, run: str, *options: str) -> str:
        words = [self.path(option) for option in options]
        out = ("--out", self.folder / "no.npz", "--device", "cpu")
        done = invoke(command, self.folder / run, *words, *out)
        assert isinstance(done.exception, InputError), done.output
        assert not (self.folder / "no.npz").exists()
        return str(done.exception)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("layout"))


@pytest.fixture(scope="module")
def turned(home: Home) -> Operator:
    fields = ("--inputs", "turned.npz:one", "--outputs", "turned.npz:sum", "--layout", "b y x")
    return home.train("turned", *fields)


@pytest.fixture(scope="module")
def double(home: Home) -> Operator:
    inputs = ("--inputs", "plain.npz:one", "--inputs", "plain.npz:two")
    axes = ("--coords", "axes.npz:x", "--coords", "axes.npz:y")
    return home.train("double", *inputs, "--outputs", "plain.npz:sum", *axes)


def test_what_was_imported_is_read_again_and_answered_in_its_order(
    home: Home, turned: Operator
) -> None:
    expected = predict(turned, home.one).values
    assert turned.card.layouts == {"inputs": "b y x", "outputs": "b y x"}
    for out in ("made.npy", "made.npz"):
        made, told = home.predict("turned", "--inputs", "turned.npz:one", out=out)
        np.testing.assert_allclose(made.mT, expected, rtol=1e-5, atol=1e-6)
        assert "read inputs as [b y x]\n" in told
        assert f"shape [{SAMPLES} {NY} {NX}] as [b y x]\n" in told


def test_another_order_can_be_said(home: Home, turned: Operator) -> None:
    expected = predict(turned, home.one).values
    made, told = home.predict("turned", "--inputs", "plain.npz:one", "--layout", "b x y")
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    assert " as [" not in told
    home.save(last={"one": home.one.transpose(2, 1, 0)})
    made, _ = home.predict("turned", "--inputs", "last.npz", "--layout", "y x b")
    np.testing.assert_allclose(made.transpose(2, 1, 0), expected, rtol=1e-5, atol=1e-6)
    answer = ("--layout", "outputs=x y b")
    made, told = home.predict("turned", "--inputs", "turned.npz:one", *answer)
    np.testing.assert_allclose(made.transpose(2, 0, 1), expected, rtol=1e-5, atol=1e-6)
    assert "as [x y b]" in told


def test_a_card_without_layouts_is_read_in_the_order_of_the_store(
    home: Home, turned: Operator
) -> None:
    turned.save(home.folder / "old")
    content = json.loads((home.folder / "old" / "model.json").read_text())
    del content["layouts"]
    (home.folder / "old" / "model.json").write_text(json.dumps(content))
    expected, told = home.predict("turned", "--inputs", "plain.npz:one", "--layout", "b x y")
    made, _ = home.predict("old", "--inputs", "plain.npz:one")
    np.testing.assert_array_equal(made, expected)
    made, told = home.predict("old", "--inputs", "turned.npz:one", "--layout", "b y x")
    np.testing.assert_array_equal(made.mT, expected)
    assert "read inputs as [b y x]" in told


def test_channels_keep_their_place(home: Home) -> None:
    fields = ("--inputs", "first.npz:both", "--outputs", "first.npz:sum", "--layout", "b c x y")
    operator = home.train("first", *fields)
    expected = predict(operator, np.stack((home.one, home.two), -1)).fields
    made, told = home.predict("first", "--inputs", "first.npz:both", out="made.npy")
    np.testing.assert_allclose(made[:, 0], expected[..., 0], rtol=1e-5, atol=1e-6)
    assert f"shape [{SAMPLES} 1 {NX} {NY}] as [b c x y]" in told
    made, told = home.predict("first", "--inputs", "first.npz:both")
    np.testing.assert_allclose(made, expected[..., 0], rtol=1e-5, atol=1e-6)
    np.save(home.folder / "points.npy", np.random.default_rng(0).random((5, 2)))
    query = ("--inputs", "first.npz:both", "--query", "points.npy")
    assert home.predict("first", *query, out="made.npy")[0].shape == (SAMPLES, 1, 5)


def test_axes_that_do_not_fit_are_refused(home: Home, turned: Operator) -> None:
    assert turned.card.layouts
    layout = ("--layout", "y x")
    assert "needs b (samples)" in home.refused("turned", "--inputs", "turned.npz:one", *layout)
    message = home.refused("turned", "--inputs", "axes.npz:x")
    assert "has 1 axes, its layout `b y x` has 3" in message
    assert "read as in training, inputs [b y x], unless --layout says otherwise" in message
    nodes = ("--inputs", "turned.npz:one", "--coords", "axes.npz:nodes")
    assert "the arrays do not fit together" in home.refused("turned", *nodes)
    data = ("--data", str(home.folder / "turned-data"), "--layout", "b y x")
    assert "--layout is of no use here" in home.refused("turned", *data)
    wrong = ("--inputs", "turned.npz:one", "--layout", "rows=b y x")
    assert "no array is called 'rows'" in home.refused("turned", *wrong)


def test_channels_of_several_files_are_joined(home: Home, double: Operator) -> None:
    expected = predict(double, np.stack((home.one, home.two), -1)).fields[..., 0]
    files = ("--inputs", "plain.npz:one", "--inputs", "plain.npz:two")
    for out in ("made.npy", "made.npz"):
        made, told = home.predict("double", *files, out=out)
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
        assert "read" not in told
    made, _ = home.predict(
        "double", "--inputs", "turned.npz:one", "--inputs", "turned.npz:two", "--layout", "b y x"
    )
    np.testing.assert_allclose(made.mT, expected, rtol=1e-5, atol=1e-6)
    assert "2 channels (one, two), got [20, 9, 7, 3]" in home.refused(
        "double", *files, "--inputs", "plain.npz:sum"
    )
    home.save(few={"two": home.two[:5]})
    message = home.refused("double", "--inputs", "plain.npz:one", "--inputs", "few.npz")
    assert "the arrays do not fit together" in message


def test_no_file_of_several_is_written_over(home: Home, double: Operator) -> None:
    assert double.card.inputs
    for name, array in (("one", home.one), ("two", home.two)):
        np.save(home.folder / f"{name}.npy", array)
    words = [f"--inputs={home.folder / name}.npy" for name in ("one", "two")]
    for name in ("one", "two"):
        out = home.folder / f"{name}.npy"
        done = invoke(command, home.folder / "double", *words, "--out", out)
        assert f"{out} is a file to predict from" in str(done.exception)


def test_coords_may_be_one_list_a_coordinate(home: Home, double: Operator) -> None:
    files = ("--inputs", "plain.npz:one", "--inputs", "plain.npz:two")
    expected, _ = home.predict("double", *files)
    made, _ = home.predict("double", *files, "--coords", "axes.npz:x", "--coords", "axes.npz:y")
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
    x, y = np.meshgrid(home.x, home.y, indexing="ij")
    home.save(
        points={"x": x.ravel(), "y": y.ravel()},
        values={"one": home.one.reshape(SAMPLES, -1), "two": home.two.reshape(SAMPLES, -1)},
    )
    listed = ("--inputs", "values.npz:one", "--inputs", "values.npz:two")
    made, _ = home.predict(
        "double", *listed, "--coords", "points.npz:x", "--coords", "points.npz:y"
    )
    np.testing.assert_allclose(made, expected.reshape(SAMPLES, -1), rtol=1e-4, atol=1e-5)
    message = home.refused("double", *files, "--coords", "axes.npz:x")
    assert "coords must be" in message or "do not fit" in message


def test_coords_turn_with_the_fields(home: Home) -> None:
    fields = ("--inputs", "turned.npz:one", "--outputs", "turned.npz:sum", "--layout", "b y x")
    nodes = ("--coords", "axes.npz:nodes", "--layout", "coords=y x c")
    operator = home.train("nodes", *fields, *nodes)
    made, told = home.predict("nodes", "--inputs", "turned.npz:one", "--coords", "axes.npz:nodes")
    expected = predict(operator, home.one).values
    np.testing.assert_allclose(made.mT, expected, rtol=1e-4, atol=1e-5)
    assert "read inputs as [b y x], coords as [y x c]" in told


def test_numbers_alone_are_answered_in_the_order_of_the_fields(home: Home) -> None:
    params = ("--params", "numbers.npz:params", "--layout", "params=c b")
    operator = home.train("numbers", *params, "--outputs", "turned.npz:sum", "--layout", "b y x")
    expected = predict(operator, params=home.params).fields[..., 0]
    made, _ = home.predict("numbers", "--params", "numbers.npz:params")
    np.testing.assert_allclose(made.mT, expected, rtol=1e-5, atol=1e-6)
    axes = ("--coords", "axes.npz:x", "--coords", "axes.npz:y")
    made, _ = home.predict("numbers", "--params", "numbers.npz:params", *axes)
    assert made.shape == (SAMPLES, NY, NX)


def test_without_values_there_are_channels_if_the_outputs_had_them(home: Home) -> None:
    params = ("--params", "numbers.npz:params", "--layout", "params=c b")
    home.save(channel={"sum": home.sum[..., None]})
    for name, outputs, layout, shape in (
        ("bare", "plain.npz:sum", (), (SAMPLES, NX, NY)),
        ("bare-turned", "turned.npz:sum", ("--layout", "outputs=b y x"), (SAMPLES, NY, NX)),
        ("channel", "channel.npz:sum", (), (SAMPLES, NX, NY, 1)),
        ("channel-first", "first.npz:sum", ("--layout", "b c x y"), (SAMPLES, 1, NX, NY)),
    ):
        home.train(name, *params, "--outputs", outputs, *layout)
        made, _ = home.predict(name, "--params", "numbers.npz:params", out="made.npy")
        assert made.shape == shape
    places = np.random.default_rng(0).random((SAMPLES, 30, 2))
    home.save(cloud={"place": places, "sum": places.sum(-1)})
    home.train("cloud", "--coords", "cloud.npz:place", "--outputs", "cloud.npz:sum")
    made, _ = home.predict("cloud", "--coords", "cloud.npz:place", out="made.npy")
    assert made.shape == (SAMPLES, 30)


def test_time_keeps_its_place_in_a_roll_out(home: Home) -> None:
    frames = ("--outputs", "plain.npz:frames", "--layout", "outputs=b x y t")
    operator = home.train("series", *frames)
    known = operator.card.history
    start = home.frames[..., :known]
    home.save(start={"frames": start}, wrong={"frames": start.transpose(0, 3, 1, 2)})
    expected = predict(operator, history=start.transpose(0, 3, 1, 2), steps=3).values
    made, told = home.predict("series", "--history", "start.npz:frames", "--steps", "3")
    np.testing.assert_allclose(made.transpose(0, 3, 1, 2), expected, rtol=1e-5, atol=1e-6)
    assert "read history as [b x y t]" in told
    assert f"shape [{SAMPLES} {NX} {NY} 3] as [b x y t]" in told
    message = home.refused("series", "--history", "wrong.npz:frames")
    assert "as in training, outputs [b x y t]" in message


def test_time_keeps_its_place_in_a_timed_answer(home: Home) -> None:
    fields = ("--inputs", "plain.npz:one", "--outputs", "plain.npz:frames")
    operator = home.train("timed", *fields, "--layout", "outputs=b x y t")
    expected = predict(operator, home.one).values
    made, told = home.predict("timed", "--inputs", "plain.npz:one")
    np.testing.assert_allclose(made.transpose(0, 3, 1, 2), expected, rtol=1e-5, atol=1e-6)
    assert "read" not in told
    assert "as [b x y t]" in told
