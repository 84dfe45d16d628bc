from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ono.data.mesh_file import open_mesh, read_mesh
from ono.data.mesh_folder import read_mesh_folder
from ono.data.mesh_writer import write_fields
from ono.errors import InputError

meshio = pytest.importorskip("meshio")

POINTS = np.array([[x, y, z] for z in (0, 1) for y in (0, 1) for x in (0, 1, 2)], float)
BOX, PRISM = (0, 1, 4, 3), (1, 2, 4)


def faces(floor: tuple[int, ...]) -> list[list[int]]:
    """Return the faces of a column that stands on nodes of the floor."""
    roof = [node + 6 for node in floor]
    sides = [[floor[k - 1], floor[k], floor[k] + 6, floor[k - 1] + 6] for k in range(len(floor))]
    return [list(floor), roof, *sides]


def columns(scale: float = 1.0) -> Any:
    """Return a box and a prism as polyhedra, whose cell data is how many points they have."""
    cells = [("polyhedron8", [faces(BOX)]), ("polyhedron6", [faces(PRISM)])]
    data = {"load": scale * POINTS[:, 0], "heat": scale * POINTS[:, 1] + POINTS[:, 0]}
    return meshio.Mesh(POINTS, cells, data, {"stress": [np.array([8.0]), np.array([6.0])]})


def test_polyhedra_have_no_weights_and_it_is_said(tmp_path: Path) -> None:
    for k in range(3):
        columns(1.0 + k).write(tmp_path / f"m{k}.vtu")
    draft = read_mesh_folder(tmp_path, inputs=["load"], outputs=["heat"])
    assert "weights" not in draft.arrays
    assert "no weights: 3 files have polyhedra, of no known size" in draft.notes
    with pytest.raises(InputError, match=r"m0\.vtu has 'stress' on polyhedra.*tetrahedra.* points"):
        read_mesh_folder(tmp_path, inputs=["load"], outputs=["stress"])


@pytest.mark.parametrize("kind", ["polyhedron", "polyhedron6"])
def test_hexahedra_beside_polyhedra_do_not_make_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    cells = [("hexahedron", np.array([[*BOX, *(k + 6 for k in BOX)]])), (kind, [faces(PRISM)])]
    mixed = meshio.Mesh(POINTS, cells, {"load": POINTS[:, 0]}, {"stress": [[1.0], [2.0]]})
    monkeypatch.setattr("ono.data.mesh_file.open_mesh", lambda path: mixed)
    assert read_mesh(tmp_path / "m.vtk", ["load"]).weights is None
    with pytest.raises(InputError, match="'stress' on polyhedra"):
        read_mesh(tmp_path / "m.vtk", ["stress"])


def test_polyhedra_keep_their_data_when_predictions_are_written(tmp_path: Path) -> None:
    columns().write(tmp_path / "m.vtu")
    write_fields(tmp_path / "m.vtu", tmp_path / "made.vtu", {"heat": POINTS[:, 0]})
    given, made = (open_mesh(tmp_path / name) for name in ("m.vtu", "made.vtu"))
    np.testing.assert_array_equal(made.point_data["heat_predicted"], POINTS[:, 0])
    for mesh in (given, made):
        for block, values in zip(mesh.cells, mesh.cell_data["stress"], strict=True):
            assert block.type == f"polyhedron{values[0]:.0f}"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_points_that_are_not_finite_are_named(tmp_path: Path, value: float) -> None:
    points = POINTS.copy()
    points[3, 0] = points[5, 1] = value
    meshio.Mesh(points, [("quad", [BOX])], {"load": POINTS[:, 0]}).write(tmp_path / "m.vtu")
    with pytest.raises(
        InputError,
        match=rf"m\.vtu has 2 points that lie nowhere, such as point 3 .*at \({value:g}, 1, 0\)",
    ):
        read_mesh(tmp_path / "m.vtu", ["load"])


def test_a_mesh_without_points_is_named(tmp_path: Path) -> None:
    empty = meshio.Mesh(np.zeros((0, 3)), [], {"load": np.zeros(0)})
    meshio.write(tmp_path / "m.xdmf", empty, data_format="XML")
    with pytest.raises(InputError, match=r"m\.xdmf has no points; export it again"):
        read_mesh(tmp_path / "m.xdmf", ["load"])
