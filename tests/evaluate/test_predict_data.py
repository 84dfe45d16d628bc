"""Predictions for datasets and mesh files, written in the format that came in."""

from __future__ import annotations

from pathlib import Path

import h5py
import meshio
import numpy as np
import pytest
import tiny
from scipy.io import loadmat
from scipy.spatial import Delaunay

from ono.data.draft import write
from ono.data.info import Array, Channel
from ono.data.mesh_folder import read_mesh_folder
from ono.data.store import Dataset
from ono.errors import DataError, InputError
from ono.evaluate.operator import Operator
from ono.evaluate.predict import predict
from ono.evaluate.predict_data import points_outside, predict_rows, predict_to_arrays, view_for
from ono.evaluate.predict_meshes import predict_folder, predict_to_meshes
from ono.train.loop import fit


def meshes(folder: Path, count: int, seed: int = 0) -> None:
    """Write triangle meshes of different sizes: a source and a load give a flow."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for index in range(count):
        points = random.random((int(random.integers(20, 30)), 2))
        heat, load = random.standard_normal() * np.cos(np.pi * points[:, 0]), random.random()
        flow = np.stack((heat + load, heat - load, 0 * heat), -1)
        meshio.Mesh(
            np.pad(points, ((0, 0), (0, 1))),
            [("triangle", Delaunay(points).simplices)],
            point_data={"heat": heat, "flow": flow},
        ).write(folder / f"case{index}.vtu")
    rows = "\n".join(f"case{i}.vtu,{0.1 * i}" for i in range(count))
    (folder / "loads.csv").write_text(f"file,load\n{rows}\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("meshes")
    meshes(home / "given", 10)
    table = str(home / "given" / "loads.csv")
    draft = read_mesh_folder(home / "given", inputs=["heat"], outputs=["flow"], params=[table])
    write(draft.dataset(home / "data", "flows", "6/2/2", None), draft.sources)
    fit(tiny.recipe(home / "data"), home / "run")
    return home


@pytest.fixture(scope="module")
def operator(home: Path) -> Operator:
    return Operator.load(home / "run")


def expected(operator: Operator, data: Dataset, row: int) -> Array:
    assert data.offsets is not None
    assert data.weights is not None
    assert data.params is not None
    span = slice(int(data.offsets[row]), int(data.offsets[row + 1]))
    made = predict(
        operator,
        data.inputs[None, span],
        coords=data.coords[None, span],
        weights=data.weights[span],
        params=data.params[row : row + 1],
    )
    field: Array = made.values[0]
    return field


def test_mesh_files_come_back_with_the_prediction_on_them(
    home: Path, operator: Operator, tmp_path: Path
) -> None:
    data = Dataset.open(home / "data")
    assert predict_to_meshes(operator, view_for(operator, data, "test"), tmp_path / "out") == 2
    for row in data.rows("test"):
        before = meshio.read(home / "given" / f"case{row}.vtu")
        after = meshio.read(tmp_path / "out" / f"case{row}.vtu")
        np.testing.assert_array_equal(before.points, after.points)
        np.testing.assert_array_equal(before.cells[0].data, after.cells[0].data)
        np.testing.assert_array_equal(before.point_data["flow"], after.point_data["flow"])
        made = after.point_data["flow_predicted"]
        assert made.shape == (len(before.points), 3)
        assert not made[:, 2].any()
        np.testing.assert_allclose(made[:, :2], expected(operator, data, row), rtol=1e-4, atol=1e-5)


def test_new_mesh_files_need_only_the_inputs(
    home: Path, operator: Operator, tmp_path: Path
) -> None:
    meshes(tmp_path / "new", 3, seed=1)
    table = [str(tmp_path / "new" / "loads.csv")]
    for file in (tmp_path / "new").glob("*.vtu"):
        mesh = meshio.read(file)
        del mesh.point_data["flow"]
        mesh.write(file)
    out = tmp_path / "out"
    assert len(predict_folder(operator, tmp_path / "new", out, params=table)) == 3
    assert "flow_predicted" in meshio.read(out / "case2.vtu").point_data
    notes: list[str] = []
    (tmp_path / "plain.csv").write_text("load\n0\n0.1\n0.2\n")
    plain = [str(tmp_path / "plain.csv")]
    predict_folder(operator, tmp_path / "new", out, params=plain, notes=notes)
    (note,) = notes
    assert note.startswith("rows of plain.csv taken in the order case0.vtu, case1.vtu, case2.vtu")
    (tmp_path / "plain.csv").write_text("load\n0\n1e6\n1e6\n")
    predict_folder(operator, tmp_path / "new", out, params=plain, notes=notes)
    assert notes[-1].startswith("case1.vtu: load of 1 of 1 samples is far from what it was")
    assert notes[-1].endswith("(and 1 more files like it)")
    (tmp_path / "other.csv").write_text("speed\n1\n2\n3\n")
    with pytest.raises(InputError, match="lacks load"):
        predict_folder(operator, tmp_path / "new", out, params=[str(tmp_path / "other.csv")])
    with pytest.raises(InputError, match="holds the meshes themselves"):
        predict_folder(operator, tmp_path / "new", tmp_path / "new", params=table)
    with pytest.raises(InputError, match=r"no number 'load'.*--params table\.csv"):
        predict_folder(operator, tmp_path / "new", out)


def test_all_new_files_are_judged_before_the_first_is_written(
    operator: Operator, tmp_path: Path
) -> None:
    new, out = tmp_path / "new", tmp_path / "deep" / "out"
    meshes(new, 3, seed=1)
    table = [str(new / "loads.csv")]
    last = meshio.read(new / "case2.vtu")
    heat = last.point_data["heat"]
    spoilt = {
        "NaN": ([("triangle", last.cells[0].data)], {"heat": np.where(heat > 0, heat, np.nan)}),
        "has no field 'heat'": ([("triangle", last.cells[0].data)], {"flow": last.points}),
        "write the file with its cells": ([("vertex", [[0]])], {"heat": heat}),
    }
    for complaint, (cells, data) in spoilt.items():
        meshio.Mesh(last.points, cells, point_data=data).write(new / "case2.vtu")
        with pytest.raises(InputError, match=rf"case2\.vtu.*{complaint}"):
            predict_folder(operator, new, out, params=table)
        assert not out.exists()
    last.write(new / "case2.vtu")
    assert len(predict_folder(operator, new, out, params=table)) == 3


def test_a_folder_that_stays_empty_is_removed(
    operator: Operator, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise DataError("cannot be written")

    monkeypatch.setattr("ono.evaluate.predict_meshes.write_fields", broken)
    view = view_for(operator, Dataset.open(home / "data"), "test")
    (tmp_path / "mine").mkdir()
    for out in (tmp_path / "out", tmp_path / "mine"):
        with pytest.raises(DataError, match="cannot be written"):
            predict_to_meshes(operator, view, out)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_meshes_of_a_dataset_are_never_overwritten(home: Path, operator: Operator) -> None:
    before = {file.name: file.read_bytes() for file in (home / "given").iterdir()}
    view = view_for(operator, Dataset.open(home / "data"), "test")
    with pytest.raises(InputError, match="holds the meshes themselves"):
        predict_to_meshes(operator, view, home / "data" / ".." / "given")
    assert {file.name: file.read_bytes() for file in (home / "given").iterdir()} == before


@pytest.mark.parametrize("name", ["made.csv", "made.vtk"])
def test_mesh_files_need_a_folder(
    home: Path, operator: Operator, tmp_path: Path, name: str
) -> None:
    view = view_for(operator, Dataset.open(home / "data"), "test")
    with pytest.raises(InputError, match="written into a folder"):
        predict_to_meshes(operator, view, tmp_path / name)
    table = [str(home / "given" / "loads.csv")]
    with pytest.raises(InputError, match="written into a folder"):
        predict_folder(operator, home / "given", tmp_path / name, params=table)
    assert not list(tmp_path.iterdir())


def test_meshes_that_were_moved_are_missed(home: Path, operator: Operator, tmp_path: Path) -> None:
    view = view_for(operator, Dataset.open(home / "data"), "test")
    (home / "given").rename(home / "moved")
    try:
        with pytest.raises(InputError, match=r"is gone, which row 8 of .*--from"):
            predict_to_meshes(operator, view, tmp_path / "out")
    finally:
        (home / "moved").rename(home / "given")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", [".npz", ".mat", ".h5"])
def test_ragged_predictions_lie_end_to_end(
    home: Path, operator: Operator, tmp_path: Path, suffix: str
) -> None:
    view = view_for(operator, Dataset.open(home / "data"), "test")
    file = tmp_path / f"made{suffix}"
    predict_to_arrays(operator, view, file)
    rows = [field for _, field in predict_rows(operator, view)]
    if suffix == ".npz":
        made = dict(np.load(file))
    elif suffix == ".mat":
        made = {key: np.squeeze(value) for key, value in loadmat(file).items() if key[0] != "_"}
    else:
        with h5py.File(file) as content:
            made = {key: content[key][:] for key in content}
    assert made["offsets"].tolist() == [0, len(rows[0]), len(rows[0]) + len(rows[1])]
    np.testing.assert_array_equal(made["flow_y"], np.concatenate(rows)[:, 1])


def test_a_grid_keeps_its_axes(tmp_path: Path) -> None:
    data = tiny.series(tmp_path / "data")
    fit(tiny.recipe(data.path), tmp_path / "run")
    operator = Operator.load(tmp_path / "run")
    view = view_for(operator, data, "test")
    shape = predict_to_arrays(operator, view, tmp_path / "made.npy")
    assert shape == np.load(tmp_path / "made.npy").shape == (4, 3, tiny.SIDE, tiny.SIDE)


def test_data_of_another_kind_is_refused(home: Path, operator: Operator, tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"its inputs are source, in training they were heat; .* `--names inputs=heat`",
    ):
        view_for(operator, tiny.dataset(tmp_path / "other"), "test")
    other = tiny.dataset(tmp_path / "plain")
    fit(tiny.recipe(other.path), tmp_path / "run")
    plain = Operator.load(tmp_path / "run")
    with pytest.raises(InputError, match="not imported from mesh files"):
        predict_to_meshes(plain, view_for(plain, other, "test"), tmp_path / "out")
    with pytest.raises(InputError, match="not trained on mesh files"):
        predict_folder(plain, home / "given", tmp_path / "out")


def test_names_of_params_and_a_lack_of_them_are_told(
    home: Path, operator: Operator, tmp_path: Path
) -> None:
    fields: dict[str, list[str]] = {"inputs": ["heat"], "outputs": ["flow"]}
    table = str(home / "given" / "loads.csv")
    draft = read_mesh_folder(home / "given", **fields, params=[table])
    named = draft.renamed({"params": (Channel(name="F", unit="N"),)})
    data = write(named.dataset(tmp_path / "named", "flows", "6/2/2", None))
    with pytest.raises(DataError, match=r"its params are F, .* load; .* `--names params=load`"):
        view_for(operator, data, "test")
    again = write(draft.dataset(tmp_path / "again", "flows", "6/2/2", None))
    assert len(view_for(operator, again, "test")) == 2
    none = write(
        read_mesh_folder(home / "given", **fields).dataset(tmp_path / "o", "f", "6/2/2", None)
    )
    with pytest.raises(DataError, match=r"params are none, .* load; import it with the params of"):
        view_for(operator, none, "test")


def test_a_mesh_that_changed_is_not_written_upon(
    home: Path, operator: Operator, tmp_path: Path
) -> None:
    data = Dataset.open(home / "data")
    file = home / "given" / f"case{data.rows('test')[0]}.vtu"
    before = file.read_bytes()
    mesh = meshio.read(file)
    try:
        mesh.point_data["heat"] = mesh.point_data["heat"] + 1
        mesh.write(file)
        with pytest.raises(DataError, match="was changed since it was imported"):
            predict_to_meshes(operator, view_for(operator, data, "test"), tmp_path / "out")
        assert not (tmp_path / "out").exists()
    finally:
        file.write_bytes(before)


def test_only_earlier_predictions_are_written_over(operator: Operator, tmp_path: Path) -> None:
    new, out = tmp_path / "new", tmp_path / "out"
    meshes(new, 3, seed=1)
    meshes(out, 2, seed=2)
    table = [str(new / "loads.csv")]
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(InputError, match=r"out/case0\.vtu exists.*choose an empty or a new folder"):
        predict_folder(operator, new, out, params=table)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    for _ in range(2):
        predict_folder(operator, new, tmp_path / "other", params=table)
    file = tmp_path / "other" / "case1.vtu"
    noted = meshio.read(file)
    noted.point_data["mine"] = noted.point_data["heat"]
    noted.write(file)
    with pytest.raises(InputError, match=r"other/case1\.vtu exists"):
        predict_folder(operator, new, tmp_path / "other", params=table)
    file.write_text("cut")
    with pytest.raises(InputError, match=r"other/case1\.vtu exists"):
        predict_folder(operator, new, tmp_path / "other", params=table)


def test_meshes_of_a_dataset_are_not_written_over_others(
    home: Path, operator: Operator, tmp_path: Path
) -> None:
    meshes(tmp_path / "mine", 10)
    view = view_for(operator, Dataset.open(home / "data"), "test")
    with pytest.raises(InputError, match=r"mine/case8\.vtu exists"):
        predict_to_meshes(operator, view, tmp_path / "mine")


def test_points_outside_the_training_box_are_counted_in_files_and_rows(
    home: Path, operator: Operator, tmp_path: Path
) -> None:
    meshes(tmp_path / "new", 3, seed=1)
    mesh = meshio.read(tmp_path / "new" / "case1.vtu")
    mesh.points[:4, 0] += 5
    mesh.write(tmp_path / "new" / "case1.vtu")
    table = [str(tmp_path / "new" / "loads.csv")]
    counts = predict_folder(operator, tmp_path / "new", tmp_path / "out", params=table)
    assert counts[1] >= 4 > max(counts[0], counts[2])
    draft = read_mesh_folder(
        tmp_path / "new", inputs=["heat"], outputs=["flow"], params=[str(table[0])]
    )
    data = write(draft.dataset(tmp_path / "data", "flows", "1/1/1", None), draft.sources)
    assert points_outside(operator, view_for(operator, data, "validation")) == [counts[1]]
