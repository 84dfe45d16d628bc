from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ono.data.cells import Cells, lumped_weights, measures, to_points
from ono.data.draft import write
from ono.data.info import Array
from ono.data.mesh_folder import mesh_files, natural, read_mesh_folder
from ono.data.sources import Sources
from ono.data.store import Dataset
from ono.errors import DataError, InputError

meshio = pytest.importorskip("meshio")

SQUARE = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [2, 0, 0], [2, 1, 0.0]])


def strip(cells: int, height: float = 1.0) -> tuple[Array, Array]:
    """Return points [2 cells + 2, 3] and triangles of a strip of squares."""
    x = np.repeat(np.arange(cells + 1.0), 2)
    y = np.tile([0.0, height], cells + 1)
    low = 2 * np.arange(cells)[:, None]
    triangles = np.concatenate([low + np.array(corners) for corners in ([0, 2, 1], [1, 2, 3])])
    return np.stack([x, y, 0 * x], -1), triangles


def save(
    file: Path, cells: int, *, height: float = 1.0, scale: float = 1.0, **changes: Any
) -> None:
    points, triangles = strip(cells, height)
    x, y, z = points.T
    content: dict[str, Any] = {
        "point_data": {"load": x * scale + y, "disp": np.stack([x, y * scale, z], -1)},
        "cell_data": {"stress": [scale * points[triangles, 0].mean(1)]},
    }
    meshio.Mesh(points, [("triangle", triangles)], **content | changes).write(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "meshes"
    place.mkdir()
    for k in (10, 1, 2, 3):
        save(place / f"case{k}.vtu", 2 + k % 5, scale=float(k))
    return place


def stored(folder: Path, out: Path, shuffle: int | None = None, **fields: Any) -> Dataset:
    draft = read_mesh_folder(folder, **fields).shuffled(shuffle)
    return write(draft.dataset(out, "mine", "2/1/1", shuffle), draft.sources)


def test_a_ragged_folder_in_natural_order(folder: Path, tmp_path: Path) -> None:
    dataset = stored(folder, tmp_path / "out", inputs=["load"], outputs=["disp", "stress"])
    assert dataset.offsets is not None
    assert np.diff(dataset.offsets).tolist() == [8, 10, 12, 6]
    assert (dataset.info.mesh.kind, dataset.info.mesh.dim) == ("cloud", 2)
    names = [channel.name for channel in dataset.info.outputs]
    assert names == ["disp_x", "disp_y", "stress"]
    points, _ = strip(4)
    second = slice(8, 18)
    np.testing.assert_array_equal(dataset.coords[second], points[:, :2])
    np.testing.assert_array_equal(dataset.outputs[second, 1], 2 * points[:, 1])
    note = dataset.info.provenance.note
    assert "coordinate z is the same everywhere" in note
    assert "cell data averaged to points by cell size: stress" in note


def test_sources_say_where_every_row_and_channel_came_from(folder: Path, tmp_path: Path) -> None:
    dataset = stored(folder, tmp_path / "out", 3, inputs=["load"], outputs=["disp", "stress"])
    sources = Sources.read(dataset.path)
    assert sources is not None
    assert sources.folder == str(folder.resolve())
    assert sources.coordinates == (0, 1)
    assert dataset.offsets is not None
    for row, source in enumerate(sources.rows):
        mesh = meshio.read(folder / source.file)
        span = slice(int(dataset.offsets[row]), int(dataset.offsets[row + 1]))
        assert source.points == len(mesh.points) == span.stop - span.start
        np.testing.assert_array_equal(dataset.coords[span], np.float32(mesh.points[:, :2]))
        for column, channel in enumerate(sources.outputs[:2]):
            value = mesh.point_data[channel.field][:, channel.component]
            np.testing.assert_array_equal(dataset.outputs[span, column], np.float32(value))
    assert [field.at for field in sources.outputs] == ["point", "point", "cell"]
    assert sorted(source.file for source in sources.rows) == sorted(
        p.name for p in folder.iterdir()
    )


def test_one_mesh_in_all_files_is_stored_once(tmp_path: Path) -> None:
    for k in range(4):
        save(tmp_path / f"m{k}.vtk", 3, scale=k + 1.0)
    draft = read_mesh_folder(tmp_path, inputs=["load"], outputs=["stress"])
    assert draft.mesh.shared
    assert draft.arrays["coords"].shape == (8, 2)
    assert draft.arrays["outputs"].shape == (4, 8, 1)
    assert draft.arrays["weights"].shape == (8,)
    with pytest.raises(InputError, match="nothing tells the samples apart"):
        read_mesh_folder(tmp_path, inputs=[], outputs=["stress"])


def test_meshes_of_one_size_and_other_shapes(tmp_path: Path) -> None:
    for k in range(4):
        save(tmp_path / f"m{k}.vtu", 3, height=k + 1.0)
    draft = read_mesh_folder(tmp_path, inputs=[], outputs=["stress"])
    assert not draft.mesh.shared
    assert draft.arrays["coords"].shape == (4, 8, 2)
    assert draft.arrays["inputs"].shape == (4, 8, 0)


def add_number(file: Path, name: str, numbers: str) -> None:
    """Write field data into a VTU file, as ParaView does; meshio reads it but leaves it out."""
    data = f'<DataArray type="Float64" Name="{name}" format="ascii">{numbers}</DataArray>'
    start = "<UnstructuredGrid>\n"
    file.write_text(file.read_text().replace(start, f"{start}<FieldData>{data}</FieldData>\n"))


def test_numbers_from_field_data_and_from_tables(tmp_path: Path) -> None:
    for k in range(3):
        save(tmp_path / f"m{k}.vtu", 3, scale=k + 1.0)
        add_number(tmp_path / f"m{k}.vtu", "mu", f"{k + 1}")
    kinds: dict[str, Any] = {"inputs": ["load"], "outputs": ["stress"]}
    draft = read_mesh_folder(tmp_path, **kinds, params=["mu"])
    assert draft.arrays["params"].tolist() == [[1], [2], [3]]
    ordered, named = tmp_path / "o.csv", tmp_path / "n.csv"
    ordered.write_text("E,nu\n1,0.5\n2,0.25\n3,0\n")
    named.write_text("nu,file\n7,m2.vtu\n8,m0.vtu\n9,m1.vtu\n")
    draft = read_mesh_folder(tmp_path, **kinds, params=[str(ordered)])
    assert [channel.name for channel in draft.params] == ["E", "nu"]
    assert draft.arrays["params"].tolist() == [[1, 0.5], [2, 0.25], [3, 0]]
    assert any(note.startswith("rows of o.csv taken in the order m0") for note in draft.notes)
    draft = read_mesh_folder(tmp_path, **kinds, params=[str(named)])
    assert draft.arrays["params"].tolist() == [[8], [9], [7]]
    assert "rows of" not in "; ".join(draft.notes)
    with pytest.raises(InputError, match="no number 'nu' in its field data"):
        read_mesh_folder(tmp_path, **kinds, params=["nu"])
    add_number(tmp_path / "m1.vtu", "pair", "1 2")
    add_number(tmp_path / "m0.vtu", "pair", "1")
    with pytest.raises(InputError, match=r"m1.vtu: the field data 'pair' holds 2 numbers"):
        read_mesh_folder(tmp_path, **kinds, params=["pair"])


CELLS: list[tuple[str, Array, float]] = [
    ("line", np.array([[0, 0, 0], [3, 4, 0.0]]), 5.0),
    ("triangle", np.array([[0, 0, 0], [2, 0, 0], [0, 3, 0.0]]), 3.0),
    ("quad", np.array([[0, 0, 0], [2, 0, 0], [3, 2, 0], [0, 2, 0.0]]), 5.0),
    ("polygon", np.array([[0, 0, 1], [2, 0, 1], [2, 2, 1], [1, 3, 1], [0, 2, 1.0]]), 5.0),
    ("tetra", np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3.0]]), 1.0),
    ("pyramid", np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 3.0]]), 1.0),
    (
        "wedge",
        np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 2], [1, 0, 2], [0, 1, 2.0]]),
        1.0,
    ),
    (
        "hexahedron",
        np.array([[x, y, z] for z in (0, 2) for x, y in ((0, 0), (3, 0), (3, 1), (0, 1))], float),
        6.0,
    ),
]


@pytest.mark.parametrize(("kind", "points", "size"), CELLS, ids=[kind for kind, _, _ in CELLS])
def test_sizes_of_cells_do_not_change_when_turned(kind: str, points: Array, size: float) -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    cells = Cells(kind, np.arange(len(points))[None], 0)
    for placed in (points, points @ turn.T + 5):
        assert measures(cells, placed) == pytest.approx([size])
    assert lumped_weights([cells], points) == pytest.approx(np.full(len(points), 1 / len(points)))


def test_weights_integrate_linear_functions_over_triangles() -> None:
    points, triangles = strip(6, height=2.0)
    weights = lumped_weights([Cells("triangle", triangles, 0)], points)
    assert weights is not None
    assert weights.sum() == pytest.approx(1)
    assert weights @ (3 * points[:, 0] + points[:, 1]) == pytest.approx(3 * 3 + 1)


def test_cells_of_lower_dimension_do_not_count() -> None:
    faces = Cells("quad", np.array([[0, 1, 2, 3], [1, 4, 5, 2]]), 0)
    edges = Cells("line", np.array([[0, 1], [1, 4]]), 1)
    assert lumped_weights([faces, edges], SQUARE) == pytest.approx(
        [1 / 8, 1 / 4, 1 / 4, *[1 / 8] * 3]
    )


def test_cell_data_is_averaged_by_cell_size() -> None:
    points = SQUARE * [1, 1, 0]
    points[4:, 0] = 4.0
    faces = Cells("quad", np.array([[0, 1, 2, 3], [1, 4, 5, 2]]), 0)
    value = to_points([faces], [np.array([[1.0], [5.0]])], points)
    assert value[:, 0] == pytest.approx([1, 4, 4, 1, 5, 5])


def test_an_empty_folder_and_other_places(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no mesh files"):
        mesh_files(tmp_path)
    (tmp_path / "a.vtp").write_text("")
    with pytest.raises(InputError, match=r"convert its 1 \.vtp files"):
        mesh_files(tmp_path)
    with pytest.raises(InputError, match="not a folder"):
        mesh_files(tmp_path / "nowhere")


def test_faults_of_samples_name_their_files(folder: Path, tmp_path: Path) -> None:
    """Also after shuffling: case3 is without outputs, case10 has the mesh and load of case2."""
    save(folder / "case2.vtu", 4)
    save(folder / "case10.vtu", 4)
    save(folder / "case3.vtu", 5, cell_data={"stress": [np.zeros(10)]})
    with pytest.raises(DataError, match=r"zero everywhere, .* in 1 files: case3\.vtu") as caught:
        stored(folder, tmp_path / "out", 1, inputs=["load"], outputs=["stress"])
    caught.match(r"a leak in 1 files: case(2\.vtu like case10|10\.vtu like case2)\.vtu")


def test_hidden_files_are_no_samples(folder: Path) -> None:
    names = [file.name for file in mesh_files(folder)]
    for name in ("._case1.vtu", ".case5.vtu"):
        (folder / name).write_bytes(b"\0\5\x16\7")
    assert [file.name for file in mesh_files(folder)] == names


def test_fields_that_are_missing_or_differ(folder: Path) -> None:
    fields: dict[str, Any] = {"inputs": ["load"], "outputs": ["stress"]}
    with pytest.raises(InputError, match="has no field 'stres'; did you mean stress"):
        read_mesh_folder(folder, inputs=["load"], outputs=["stres"])
    with pytest.raises(InputError, match="nothing to predict"):
        read_mesh_folder(folder, inputs=["load"], outputs=[])
    points, _ = strip(3)
    pair = {"load": np.zeros((len(points), 2))}
    save(folder / "case4.vtu", 3, point_data=pair)
    with pytest.raises(InputError, match=r"'load' has different components: 1 in case1.vtu, 2 in"):
        read_mesh_folder(folder, **fields)
    only = {"load": points[:, 0], "stress": points[:, 0]}
    save(folder / "case4.vtu", 3, point_data=only)
    with pytest.raises(InputError, match="'stress' has different data"):
        read_mesh_folder(folder, **fields)


def test_a_damaged_file_is_named(folder: Path) -> None:
    (folder / "case2.vtu").write_text("<VTKFile")
    with pytest.raises(DataError, match=r"case2\.vtu cannot be read as a mesh.*export it again"):
        read_mesh_folder(folder, inputs=["load"], outputs=["stress"])


def test_points_without_cells_have_no_cell_data(folder: Path) -> None:
    points, triangles = strip(3)
    mesh = meshio.Mesh(
        np.concatenate([points, [[9, 9, 0]]]),
        [("triangle", triangles)],
        point_data={"load": np.ones(len(points) + 1)},
        cell_data={"stress": [np.ones(len(triangles))]},
    )
    mesh.write(folder / "case4.vtu")
    with pytest.raises(InputError, match="1 points that belong to no cell"):
        read_mesh_folder(folder, inputs=["load"], outputs=["stress"])


def test_without_meshio_the_way_to_install_it_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "meshio", None)
    with pytest.raises(InputError, match=r'pip install "ono\[mesh\]"'):
        read_mesh_folder(folder, inputs=["load"], outputs=["stress"])


@pytest.mark.parametrize("plane", ["xz", "yz", "xy"])
def test_a_plane_mesh_may_stand_upright(tmp_path: Path, plane: str) -> None:
    columns = ["xyz".index(letter) for letter in plane]
    (across,) = {0, 1, 2} - set(columns)
    for k in range(4):
        flat, triangles = strip(3, 1.0 + k)
        points, flow = np.full((len(flat), 3), 3.0), np.zeros((len(flat), 3))
        points[:, columns] = flat[:, :2]
        points[::2, across] += 1e-15
        flow[:, columns] = flat[:, :2] * (1 + k)
        data = {"flow": flow}
        meshio.Mesh(points, [("triangle", triangles)], point_data=data).write(
            tmp_path / f"m{k}.vtu"
        )
    draft = read_mesh_folder(tmp_path, inputs=[], outputs=["flow"])
    assert draft.mesh.dim == 2
    assert [channel.name for channel in draft.outputs] == [f"flow_{letter}" for letter in plane]
    assert draft.sources is not None
    assert draft.sources.coordinates == tuple(columns)
    assert [source.component for source in draft.sources.outputs] == columns
    np.testing.assert_array_equal(draft.arrays["coords"][2], np.float32(strip(3, 3.0)[0][:, :2]))
    np.testing.assert_array_equal(draft.arrays["outputs"][2], 3 * draft.arrays["coords"][2])


def test_a_vector_that_leaves_the_plane_keeps_all_components(tmp_path: Path) -> None:
    for k in range(4):
        points, triangles = strip(3, 1.0 + k)
        data = {"flow": points + np.array([0, 0, 1.0])}
        meshio.Mesh(points[:, [0, 2, 1]], [("triangle", triangles)], point_data=data).write(
            tmp_path / f"m{k}.vtu"
        )
    draft = read_mesh_folder(tmp_path, inputs=[], outputs=["flow"])
    assert [channel.name for channel in draft.outputs] == ["flow_x", "flow_y", "flow_z"]


def test_meshes_far_from_the_origin_are_refused(tmp_path: Path) -> None:
    for k in range(3):
        points, triangles = strip(3 + k)
        data = {"load": points[:, 0], "stress": points[:, 1] + k}
        meshio.Mesh(points + 3e9, [("triangle", triangles)], point_data=data).write(
            tmp_path / f"m{k}.vtu"
        )
    with pytest.raises(InputError, match=r"m0\.vtu: .* 8 different points become 1, .*subtract an"):
        read_mesh_folder(tmp_path, inputs=["load"], outputs=["stress"])


def test_points_of_no_cell_are_noted(tmp_path: Path) -> None:
    for k in range(3):
        points, triangles = strip(3 + k)
        points = np.concatenate([points, [[9, 9, 0]]])
        data = {"load": points[:, 0], "stress": points[:, 1] + k}
        meshio.Mesh(points, [("triangle", triangles)], point_data=data).write(
            tmp_path / f"m{k}.vtu"
        )
    draft = read_mesh_folder(tmp_path, inputs=["load"], outputs=["stress"])
    assert "3 points belong to no cell" in "; ".join(draft.notes)
    assert draft.arrays["weights"][8] == 0


def test_one_file_and_a_series_of_times_say_what_to_do(tmp_path: Path) -> None:
    save(tmp_path / "m.vtu", 3)
    with pytest.raises(InputError, match=f"give the folder it lies in, {tmp_path}"):
        mesh_files(tmp_path / "m.vtu")
    (tmp_path / "m.vtu").unlink()
    points, triangles = strip(3)
    with meshio.xdmf.TimeSeriesWriter(str(tmp_path / "m.xdmf"), "XML") as writer:
        writer.write_points_cells(points, [("triangle", triangles)])
        for time in (0.0, 1.0):
            writer.write_data(time, point_data={"load": points[:, 0], "stress": points[:, 1]})
    with pytest.raises(InputError, match="a file of its own"):
        read_mesh_folder(tmp_path, inputs=["load"], outputs=["stress"])


def test_digits_that_are_no_decimals_are_letters() -> None:
    assert sorted(["1²10.vtu", "1²3.vtu"], key=natural) == ["1²3.vtu", "1²10.vtu"]


@pytest.mark.parametrize(
    ("factor", "complaint"),
    [
        (np.nan, "8 values of 'load' in .*case2.vtu are not finite"),
        (1e200, "too large for float32"),
    ],
)
def test_a_field_that_cannot_be_stored_is_named(
    folder: Path, factor: float, complaint: str
) -> None:
    points, _ = strip(3)
    data = {"load": (1 + points[:, 0]) * factor, "disp": points}
    save(folder / "case2.vtu", 3, point_data=data)
    with pytest.raises(InputError, match=r"'load' in .*case2\.vtu") as caught:
        read_mesh_folder(folder, inputs=["load"], outputs=["stress"])
    caught.match(complaint)


@pytest.mark.parametrize("field", ["load", "stress"])
def test_a_field_that_float32_does_not_tell_apart_is_refused(folder: Path, field: str) -> None:
    """On points and on cells, with the words that arrays have."""
    for k in (10, 1, 2, 3):
        points, triangles = strip(2 + k % 5)
        data = {"load": 1e9 + points[:, 0], "disp": points}
        cells = {"stress": [1e9 + points[triangles, 0].mean(1)]}
        changes = {"point_data": data} if field == "load" else {"cell_data": cells}
        save(folder / f"case{k}.vtu", 2 + k % 5, scale=float(k), **changes)
    complaint = (
        f"'{field}': in float32 numbers as large as 1e.09 move by up to .*subtract an offset"
    )
    with pytest.raises(InputError, match=complaint):
        read_mesh_folder(folder, inputs=["load"], outputs=["stress"])


def test_numbers_that_float32_does_not_tell_apart_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(
        "file,mass,time\ncase1,1,1e9\ncase2,2,1000000001\ncase3,3,1e9\ncase10,4,1e9\n"
    )
    table = [str(tmp_path / "table.csv")]
    with pytest.raises(InputError, match="'time': in float32 numbers as large as"):
        read_mesh_folder(folder, inputs=["load"], outputs=["stress"], params=table)


def test_numbers_too_large_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("file,mass\ncase1,1\ncase2,2\ncase3,3\ncase10,1e200\n")
    table = [str(tmp_path / "table.csv")]
    with pytest.raises(InputError, match="'mass' are too large for float32"):
        read_mesh_folder(folder, inputs=["load"], outputs=["stress"], params=table)
