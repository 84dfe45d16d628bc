from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import tiny
import typer
from scipy.io import loadmat
from typer.testing import CliRunner, Result

from ono.cli.predict import predict as command
from ono.data.info import Array, Channel
from ono.data.store import Dataset, write_dataset
from ono.errors import InputError
from ono.evaluate.operator import Operator
from ono.evaluate.predict import predict
from ono.train.loop import fit

app = typer.Typer()
app.command()(command)


class Home:
    """A run whose operator knows two numbers of a sample and predicts two fields."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        plain = tiny.dataset(folder / "plain")
        random = np.random.default_rng(0)
        self.params: Array = random.random((tiny.SAMPLES, 2)).astype(np.float32)
        update = {
            "params": (Channel(name="load"), Channel(name="angle")),
            "outputs": (Channel(name="u"), Channel(name="file")),
        }
        both = np.concatenate((plain.outputs, plain.outputs * self.params[:, None, :1]), -1)
        self.data = write_dataset(
            folder / "data",
            plain.info.model_copy(update=update),
            {
                "coords": plain.coords,
                "inputs": plain.inputs,
                "outputs": both,
                "params": self.params,
            },
        )
        fit(tiny.recipe(plain.path, epochs=1), folder / "simple")
        fit(tiny.recipe(self.data.path, epochs=1), folder / "run")
        self.operator = Operator.load(folder / "run")
        np.save(folder / "a.npy", plain.inputs[16:].reshape(-1, tiny.SIDE, tiny.SIDE))
        np.save(folder / "p.npy", self.params[16:])

    def run(self, *arguments: object, name: str = "run") -> Result:
        words = [str(self.folder / name), *map(str, arguments), "--device", "cpu"]
        return CliRunner().invoke(app, words)

    def refused(self, *arguments: object, name: str = "run") -> str:
        result = self.run(*arguments, name=name)
        assert isinstance(result.exception, InputError), result.output
        return str(result.exception)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("command"))


@pytest.mark.parametrize("header", ["load,angle", "angle,load", "angle,mass,load"])
def test_columns_of_a_table_go_by_their_names(home: Home, tmp_path: Path, header: str) -> None:
    columns = dict(zip(("load", "angle"), home.params[16:].T, strict=True))
    rows = zip(*(columns.get(name, np.zeros(4)) for name in header.split(",")), strict=True)
    text = "\n".join(",".join(repr(float(number)) for number in row) for row in rows)
    (tmp_path / "p.csv").write_text(f"{header}\n{text}\n")
    inputs = ("--inputs", home.folder / "a.npy", "--out", tmp_path / "made.npz")
    result = home.run(*inputs, "--params", tmp_path / "p.csv")
    assert result.exit_code == 0, result.exception
    expected = predict(
        home.operator, np.load(home.folder / "a.npy"), params=home.params[16:]
    ).fields
    with np.load(tmp_path / "made.npz") as made:
        np.testing.assert_allclose(made["u"], expected[..., 0], rtol=1e-5)
    (tmp_path / "p.csv").write_text(f"load,angel\n{text}\n" if header.count(",") == 1 else "x\n1\n")
    assert "lacks" in home.refused(*inputs, "--params", tmp_path / "p.csv")


def test_arrays_and_datasets_give_the_same_file(home: Home, tmp_path: Path) -> None:
    arrays = ("--inputs", home.folder / "a.npy", "--params", home.folder / "p.npy")
    for suffix in ("npz", "h5"):
        one, two = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
        assert "shape [4 9 9]" in home.run(*arrays, "--out", one).output
        assert "shape [4 9 9]" in home.run("--data", home.data.path, "--out", two).output
        contents = []
        for file in (one, two):
            if suffix == "npz":
                contents.append(dict(np.load(file)))
            else:
                with h5py.File(file) as stored:
                    contents.append({key: stored[key][:] for key in stored})
        assert set(contents[0]) == set(contents[1]) == {"u", "file"}
        for name, values in contents[0].items():
            np.testing.assert_allclose(values, contents[1][name], rtol=1e-4, atol=1e-6)
    home.run(*arrays, "--out", tmp_path / "made.npy")
    assert np.load(tmp_path / "made.npy").shape == (4, 9, 9, 2)


def test_what_is_unlike_training_is_a_warning(home: Home, tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", home.params[16:] * [1, 1000])
    arrays = ("--inputs", home.folder / "a.npy", "--out", tmp_path / "made.npz", "--params")
    assert home.run(*arrays, home.folder / "p.npy").stderr == ""
    done = home.run(*arrays, tmp_path / "p.npy")
    assert done.exit_code == 0, done.exception
    assert "warning: angle of 4 of 4 samples is far from what it was in training" in done.stderr
    assert home.run("--data", home.data.path, "--out", tmp_path / "made.npz").stderr == ""
    stored = {name: np.array(array) for name, array in home.data.arrays.items()}
    write_dataset(tmp_path / "far", home.data.info, {**stored, "inputs": 1000 * stored["inputs"]})
    done = home.run("--data", tmp_path / "far", "--out", tmp_path / "made.npz")
    assert "warning: source of 4 of 4 samples is far" in done.stderr


def test_a_name_that_the_format_does_not_take_is_told(home: Home, tmp_path: Path) -> None:
    plain = home.folder / "plain"
    data = Dataset.open(plain)
    spaced = data.info.model_copy(update={"outputs": (Channel(name="velocity x"),)})
    write_dataset(tmp_path / "data", spaced, data.arrays)
    fit(tiny.recipe(tmp_path / "data", epochs=1), home.folder / "spaced")
    for words in (("--inputs", home.folder / "a.npy"), ("--data", tmp_path / "data")):
        told = home.run(*words, "--out", tmp_path / "p.mat", name="spaced").output
        assert "note: MATLAB takes plain names only: 'velocity x' as velocity_x" in told
        assert loadmat(tmp_path / "p.mat")["velocity_x"].shape == (4, 9, 9)
        other = home.run(*words, "--out", tmp_path / "p.npz", name="spaced").output
        assert "note" not in other


def test_coords_are_one_mesh_for_all_samples_or_one_for_each(home: Home, tmp_path: Path) -> None:
    points = np.asarray(Dataset.open(home.folder / "plain").coords)
    made = []
    for name, coords in (("all", points), ("each", np.stack([points] * 4))):
        np.save(tmp_path / "c.npy", coords)
        words = ("--inputs", home.folder / "a.npy", "--coords", tmp_path / "c.npy")
        done = home.run(*words, "--out", tmp_path / f"{name}.npy", name="simple")
        assert done.exit_code == 0, done.output
        made.append(np.load(tmp_path / f"{name}.npy"))
    np.testing.assert_array_equal(*made)
    np.save(tmp_path / "c.npy", np.stack([points] * 3))
    words = ("--inputs", home.folder / "a.npy", "--coords", tmp_path / "c.npy")
    message = home.refused(*words, "--out", tmp_path / "no.npy", name="simple")
    assert "coords must be [81 2] or [4 81 2]" in message


def test_what_would_be_ignored_is_refused(home: Home, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "made.npz")
    array, table = home.folder / "a.npy", home.folder / "p.npy"
    for option, value in (
        ("--params", table),
        ("--steps", 3),
        ("--inputs", array),
        ("--times", array),
        ("--chunk", 5),
    ):
        assert f"{option} is of no use here" in home.refused(
            "--data", home.data.path, *out, option, value
        )
    new = ("--from", tmp_path, *out)
    assert "--steps is of no use here" in home.refused(*new, "--steps", 3)
    assert "--split is of no use here" in home.refused(*new, "--split", "train")
    assert "--inputs is of no use here" in home.refused(*new, "--inputs", array)
    assert "--split is of no use here" in home.refused("--inputs", array, *out, "--split", "test")
    assert "one of the three" in home.refused("--from", tmp_path, "--data", tmp_path, *out)
    for text in (table, tmp_path / "some.csv"):
        message = home.refused("--inputs", array, *out, "--params", text, name="simple")
        assert "trained without params" in message
    assert not list(tmp_path.iterdir())


def test_input_points_can_be_taken_in_chunks(home: Home, tmp_path: Path) -> None:
    arrays = ("--inputs", home.folder / "a.npy", "--params", home.folder / "p.npy")
    assert home.run(*arrays, "--out", tmp_path / "whole.npy").exit_code == 0
    assert home.run(*arrays, "--out", tmp_path / "parts.npy", "--chunk", 10).exit_code == 0
    whole, parts = (np.load(tmp_path / f"{name}.npy") for name in ("whole", "parts"))
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-5)


def test_another_split_of_a_dataset(home: Home, tmp_path: Path) -> None:
    result = home.run("--data", home.data.path, "--split", "train", "--out", tmp_path / "m.npz")
    assert "12 samples" in result.output, result.exception


def test_numbers_from_a_table_and_an_array_together(home: Home, tmp_path: Path) -> None:
    text = "\n".join(repr(float(number)) for number in home.params[16:, 1])
    (tmp_path / "angle.csv").write_text(f"angle\n{text}\n")
    np.save(tmp_path / "load.npy", home.params[16:, 0])
    common = ("--inputs", home.folder / "a.npy", "--params", tmp_path / "angle.csv", "--params")
    result = home.run(*common, tmp_path / "load.npy", "--out", tmp_path / "m.npz")
    assert result.exit_code == 0, result.exception
    values = np.load(home.folder / "a.npy")
    expected = predict(home.operator, values, params=home.params[16:]).fields
    with np.load(tmp_path / "m.npz") as made:
        np.testing.assert_allclose(made["u"], expected[..., 0], rtol=1e-5)
    out = ("--out", tmp_path / "m.npz")
    assert "2 columns without a name for load" in home.refused(*common, home.folder / "p.npy", *out)
    np.save(tmp_path / "load.npy", home.params[:3, 0])
    assert "every sample needs its numbers" in home.refused(*common, tmp_path / "load.npy", *out)


def test_a_dataset_tells_its_params(home: Home) -> None:
    summary = Dataset.open(home.data.path).summary()
    assert summary["params"] == "load [1], angle [1]"
    assert summary["made by"] == "tests, seed 0"


def test_what_is_read_is_never_written_over(home: Home, tmp_path: Path) -> None:
    array = np.load(home.folder / "a.npy")
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", heat=array)
    np.save(tmp_path / "other.npz", array)
    for inputs, out in (("a.npy", "a.npy"), ("a.npz:heat", "a.npz"), ("a.npy", "../%/a.npy")):
        file = tmp_path / out.replace("%", tmp_path.name)
        before = file.read_bytes()
        message = home.refused("--inputs", tmp_path / inputs, "--out", file, name="simple")
        assert f"{file} is a file to predict from" in message
        assert "choose another --out" in message
        assert file.read_bytes() == before
    result = home.run(
        "--inputs", tmp_path / "a.npy", "--out", tmp_path / "other.npz", name="simple"
    )
    assert result.exit_code == 0, result.exception


def test_nothing_is_written_into_a_dataset(home: Home) -> None:
    before = {file.name: file.read_bytes() for file in home.data.path.iterdir()}
    for source in (("--inputs", home.folder / "a.npy"), ("--data", home.data.path)):
        for name in ("inputs.npy", "new.npz"):
            message = home.refused(*source, "--out", home.data.path / name)
            assert f"{home.data.path} is a dataset" in message
    assert "is a dataset" in home.refused("--from", home.folder, "--out", home.data.path)
    assert {file.name: file.read_bytes() for file in home.data.path.iterdir()} == before


def test_a_dataset_outside_the_training_box_is_a_warning(home: Home, tmp_path: Path) -> None:
    plain = Dataset.open(home.folder / "plain")
    arrays = {"coords": plain.coords * 2, "inputs": plain.inputs, "outputs": plain.outputs}
    wide = write_dataset(tmp_path / "wide", plain.info, arrays)  # type: ignore[arg-type]
    result = home.run("--data", wide.path, "--out", tmp_path / "m.npz", name="simple")
    # Of 9 x 9 nodes 5 x 5 lie in the old box.
    assert "warning: 56 points lie outside the box of the training data" in result.stderr
    result = home.run("--data", plain.path, "--out", tmp_path / "m.npz", name="simple")
    assert "warning" not in result.stderr


def test_files_outside_the_training_box_are_counted(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counts(*_: object, notes: list[str], **__: object) -> list[int]:
        notes.append("rows of loads.csv taken in the order a.vtu, b.vtu, c.vtu")
        return [3, 0, 2]

    monkeypatch.setattr("ono.evaluate.predict_meshes.predict_folder", counts)
    result = home.run("--from", tmp_path, "--out", tmp_path / "out")
    told = "warning: 5 points lie outside the box of the training data, in 2 of 3 files\n"
    assert told in result.stderr
    assert "note: rows of loads.csv taken in the order a.vtu" in result.stdout
