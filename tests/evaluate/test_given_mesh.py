"""New mesh files that are not like those of training are refused, and what to do is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest
import tiny
from scipy.spatial import Delaunay

from ono.data.draft import write
from ono.data.info import Array
from ono.data.mesh_folder import read_mesh_folder
from ono.data.sources import MeshFields, Sources
from ono.errors import InputError
from ono.evaluate.operator import Operator
from ono.evaluate.predict_meshes import predict_folder
from ono.train.loop import fit

Change = Callable[[Array], Array]


def plate(file: Path, seed: int, **changes: Any) -> None:
    """Write triangles in the plane x-y, with a scalar and a vector that lies in it."""
    points = np.random.default_rng(seed).random((25, 3)) * [1, 1, 0]
    heat = (1 + seed) * np.cos(3 * points[:, 0])
    data = {"heat": heat, "push": np.stack((heat, points[:, 0], 0 * heat), -1)}
    mesh = meshio.Mesh(
        points, [("triangle", Delaunay(points[:, :2]).simplices)], data | {"flow": heat**2}
    )
    for name, change in changes.items():
        if name == "points":
            mesh.points = change(mesh.points)
        else:
            mesh.point_data[name] = change(mesh.point_data[name])
    mesh.write(file)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    home = tmp_path_factory.mktemp("plates")
    (home / "given").mkdir()
    for k in range(6):
        plate(home / "given" / f"m{k}.vtu", k)
    draft = read_mesh_folder(home / "given", inputs=["heat", "push"], outputs=["flow"])
    write(draft.dataset(home / "data", "plates", "4/1/1", None), draft.sources)
    fit(tiny.recipe(home / "data"), home / "run")
    return Operator.load(home / "run")


def swapped(a: int, b: int) -> Change:
    order = [0, 1, 2]
    order[a], order[b] = b, a
    return lambda points: points[:, order]


def curved(points: Array) -> Array:
    return points + np.outer(points[:, 0] ** 2, [0, 0, 0.5])


def vector(values: Array) -> Array:
    return np.stack((values, values, 0 * values), -1)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"points": swapped(1, 2)}, r"in z, which was the same .* sees x, y only; turn the mesh"),
        ({"points": swapped(0, 2)}, r"in z, which was the same .* sees x, y only; turn the mesh"),
        ({"points": curved}, r"reaches from .* in z, .*import meshes like it and train on them"),
        (
            {"points": lambda points: points * [1, 0, 0] + [0, 7, 0]},
            r"one y everywhere, 7, and every mesh of training varied in x, y; turn the mesh",
        ),
        ({"points": lambda points: np.full_like(points, np.nan)}, "25 points that lie nowhere"),
        ({"heat": vector}, r"'heat' with 3 components, in training it had 1; write it as"),
        ({"push": lambda push: push[:, 0]}, r"'push' with 1 components, in training it had 3"),
        (
            {"push": lambda push: push + np.array([0, 0, 1])},
            r"'push' with values in z, .*make it zero",
        ),
    ],
)
def test_a_mesh_unlike_those_of_training_is_refused(
    operator: Operator, tmp_path: Path, changes: dict[str, Change], complaint: str
) -> None:
    new = tmp_path / "new"
    new.mkdir()
    plate(new / "a.vtu", 10)
    plate(new / "b.vtu", 11, **changes)
    with pytest.raises(InputError, match=rf"b\.vtu .*{complaint}"):
        predict_folder(operator, new, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_polyhedra_cannot_be_weighed(operator: Operator, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    plate(new / "a.vtu", 10)
    mesh = meshio.read(new / "a.vtu")
    faces = [[0, 1, 2], [0, 1, 3], [1, 2, 3], [0, 2, 3]]
    meshio.Mesh(mesh.points, [("polyhedron4", [faces])], mesh.point_data).write(new / "a.vtu")
    with pytest.raises(InputError, match=r"a\.vtu has polyhedra, .*; convert them to tetrahedra"):
        predict_folder(operator, new, tmp_path / "out")


def test_the_plane_may_lie_elsewhere_and_a_little_rough(operator: Operator, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    rough = np.random.default_rng(0).random((25, 3)) * [0, 0, 1e-15]
    plate(
        tmp_path / "new" / "a.vtu", 10, points=lambda points: points + np.array([0, 0, 3]) + rough
    )
    assert len(predict_folder(operator, tmp_path / "new", tmp_path / "out")) == 1


def test_coordinates_that_differ_between_files_only_may_stand_still_in_one(tmp_path: Path) -> None:
    for k in range(3):
        plate(tmp_path / f"m{k}.vtu", k, points=lambda points, k=k: points + np.array([0, 0, k]))
    draft = read_mesh_folder(tmp_path, inputs=["heat"], outputs=["flow"])
    assert draft.sources is not None
    assert draft.sources.fields.coordinates == (0, 1, 2)
    assert draft.sources.fields.varying == (0, 1)


def test_an_operator_that_does_not_say_so_much_works_as_before(
    operator: Operator, tmp_path: Path
) -> None:
    fields = operator.card.fields
    assert fields is not None
    content = fields.model_dump(exclude={"varying": True, "inputs": {"__all__": {"components"}}})
    older = MeshFields.model_validate(content)
    card = operator.card.model_copy(update={"fields": older})
    copy = Operator(card)
    copy.load_state_dict(operator.state_dict())
    (tmp_path / "new").mkdir()
    plate(tmp_path / "new" / "a.vtu", 10, heat=vector)
    assert len(predict_folder(copy, tmp_path / "new", tmp_path / "out")) == 1
    plate(tmp_path / "new" / "a.vtu", 10, push=lambda push: push[:, 0])
    with pytest.raises(InputError, match="'push' with 1 components; push_y is component 2"):
        predict_folder(copy, tmp_path / "new", tmp_path / "out")


def test_sources_of_earlier_versions_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.json").write_text(
        '{"coordinates": [0, 1], "inputs": [{"channel": "a", "field": "a", "at": "point"}],'
        ' "folder": "meshes", "rows": []}'
    )
    sources = Sources.read(tmp_path)
    assert sources is not None
    assert sources.fields.varying == ()
    assert sources.inputs[0].components is None
