from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ono.data.mesh_file import read_mesh
from ono.data.mesh_writer import as_fields, refuse_overwriting_meshes, write_fields
from ono.data.sources import FieldSource
from ono.errors import InputError

meshio = pytest.importorskip("meshio")

POINTS = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0.0]])
CELLS = [("line", [[0, 1], [1, 2]]), ("triangle", [[0, 1, 2], [0, 2, 3]])]


@pytest.mark.parametrize(
    ("suffix", "format"),
    [(".vtu", "vtu"), (".vtk", "vtk"), (".xdmf", "xdmf"), (".msh", "gmsh22")],
)
def test_a_prediction_and_the_boundary_survive_every_format(
    tmp_path: Path, suffix: str, format: str
) -> None:
    mesh = meshio.Mesh(POINTS, CELLS, point_data={"load": np.arange(4.0)})
    if suffix == ".msh":
        mesh.cell_data["gmsh:physical"] = [np.array([7, 8]), np.array([9, 9])]
        mesh.cell_data["gmsh:geometrical"] = [np.array([1, 2]), np.array([3, 3])]
    source, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    meshio.write(source, mesh, file_format=format)
    made = {"stress": np.array([1.5, 2, 3, 4]), "flow": np.arange(12.0).reshape(4, 3)}
    write_fields(source, out, made)
    (tmp_path / "made").mkdir()
    write_fields(source, tmp_path / "made" / source.name, made)
    refuse_overwriting_meshes([source], tmp_path / "made", made)
    with pytest.raises(InputError, match=f"made/in{suffix} exists"):
        refuse_overwriting_meshes([source], tmp_path / "made", ["stress"])
    again = read_mesh(out, ["load", "stress_predicted", "flow_predicted"])
    assert again.at["stress_predicted"] == "point"
    np.testing.assert_array_equal(again.points, POINTS)
    np.testing.assert_allclose(again.fields["load"][:, 0], np.arange(4))
    np.testing.assert_allclose(again.fields["stress_predicted"][:, 0], made["stress"])
    np.testing.assert_allclose(again.fields["flow_predicted"], made["flow"])
    with_lines = {block.type: len(block.data) for block in meshio.read(out).cells}
    assert with_lines == {"line": 2, "triangle": 2}
    if suffix == ".msh":
        assert out.read_bytes().startswith(b"$MeshFormat")
        assert meshio.read(out).cell_data["gmsh:physical"][0].tolist() == [7, 8]


GMSH_4 = """$MeshFormat
4.1 0 8
$EndMeshFormat
$PhysicalNames
2
1 7 "wall"
2 9 "plate"
$EndPhysicalNames
$Entities
0 1 1 0
1 0 0 0 1 0 0 1 7 0
1 0 0 0 1 1 0 1 9 1 1
$EndEntities
$Nodes
1 4 1 4
2 1 0 4
1
2
3
4
0 0 0
1 0 0
1 1 0
0 1 0
$EndNodes
$Elements
2 3 1 3
1 1 1 1
1 1 2
2 1 2 2
2 1 2 3
3 1 3 4
$EndElements
$NodeData
1
"load"
1
0
3
0
1
4
1 0
2 1
3 2
4 3
$EndNodeData
"""


def test_a_file_of_gmsh_4_keeps_its_groups(tmp_path: Path) -> None:
    (tmp_path / "in.msh").write_text(GMSH_4)
    write_fields(tmp_path / "in.msh", tmp_path / "out.msh", {"u": np.arange(4.0)})
    again = meshio.read(tmp_path / "out.msh")
    np.testing.assert_array_equal(again.point_data["u_predicted"].ravel(), np.arange(4))
    np.testing.assert_array_equal(again.point_data["load"].ravel(), np.arange(4))
    assert {block.type: len(block.data) for block in again.cells} == {"line": 1, "triangle": 2}
    assert [tags.tolist() for tags in again.cell_data["gmsh:physical"]] == [[7], [9, 9]]
    assert set(again.field_data) == {"wall", "plate"}


def part(component: int, count: int = 3) -> FieldSource:
    name = f"v_{'xyz'[component]}" if count > 1 else "v"
    return FieldSource(channel=name, field="v", component=component, at="point")


def test_a_vector_is_put_together_only_if_all_of_it_is_there() -> None:
    values = np.arange(8.0).reshape(4, 2)
    plane = [part(0), part(2)]
    whole = as_fields(values, plane, plane)
    assert list(whole) == ["v"]
    np.testing.assert_array_equal(whole["v"][:, [0, 2]], values)
    assert not whole["v"][:, 1].any()
    assert list(as_fields(values[:, :1], plane[1:], plane)) == ["v_z"]
    some = as_fields(values, plane, [part(0), part(1), part(2)])
    assert list(some) == ["v_x", "v_z"]
    np.testing.assert_array_equal(some["v_z"], values[:, 1])
    alone = [part(0, 1)]
    np.testing.assert_array_equal(as_fields(values[:, :1], alone, alone)["v"], values[:, 0])
