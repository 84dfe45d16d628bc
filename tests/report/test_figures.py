from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.figure import Figure

from ono.data.store import Array, ArrayName, Channel, Dataset, Info, Mesh, Provenance, write_dataset
from ono.report.fields import ERROR, Place, Scale, draw, drawable, flatten, short
from ono.report.figures import (
    Eigenfunctions,
    Level,
    Sample,
    curves,
    eigenfunctions_figure,
    error_distribution,
    gallery,
    resolution_figure,
    samples_figure,
)

MESHES = {
    "grid": Mesh(kind="grid", dim=2, shape=(3, 4), shared=True),
    "structured": Mesh(kind="structured", dim=2, shape=(3, 4), shared=False),
    "cloud": Mesh(kind="cloud", dim=2, shared=False),
    "ragged": Mesh(kind="cloud", dim=2, shared=False),
    "line": Mesh(kind="grid", dim=1, shape=(12,), shared=True),
    "volume": Mesh(kind="grid", dim=3, shape=(2, 3, 2), shared=True),
    "surface": Mesh(kind="structured", dim=3, shape=(3, 4), shared=True),
    "moving": Mesh(kind="grid", dim=2, shape=(3, 4), shared=True),
    "moving ragged": Mesh(kind="cloud", dim=2, shared=False),
}


def stored(path: Path, case: str, **changes: Any) -> Dataset:
    mesh, random = MESHES[case], np.random.default_rng(0)
    points = 5 * 12
    coords = random.random((1 if mesh.shared else 5, 12, mesh.dim))
    if mesh.kind == "grid":
        axes = np.meshgrid(*(np.linspace(0, 1, n) for n in mesh.shape or ()), indexing="ij")
        coords = np.stack(axes, -1).reshape(1, 12, mesh.dim)
    arrays: dict[ArrayName, Array] = {
        "coords": coords[0] if mesh.shared else coords,
        "inputs": random.random((5, 12, 1)),
        "outputs": random.random((5, 12, 2)),
    }
    if case.endswith("ragged"):
        arrays = {name: a.reshape(points, -1) for name, a in arrays.items()}
        arrays["offsets"] = np.array([0, 7, 20, 31, 45, 60])
    if case.startswith("moving"):
        arrays["times"] = np.array([0.5, 1.5])
        arrays["outputs"] = random.random((60, 2, 2) if "offsets" in arrays else (5, 2, 12, 2))
    content: dict[str, Any] = {
        "name": case,
        "task": "timed" if case.startswith("moving") else "steady",
        "mesh": mesh,
        "inputs": (Channel(name="a"),),
        "outputs": (Channel(name="u", unit="Pa"), Channel(name="v")),
        "samples": 5,
        "splits": {"train": (0, 3), "validation": (3, 4), "test": (4, 5)},
        "provenance": Provenance(maker="test"),
    }
    return write_dataset(path, Info(**content | changes), arrays)


def render(figure: Figure) -> int:
    """Draw a figure as PNG; a warning would be an error."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return len(file.getvalue())


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def titles(figure: Figure) -> list[str]:
    return [t for axes in figure.axes if (t := axes.get_title(loc="left"))]


@pytest.mark.parametrize("case", [case for case in MESHES if not case.startswith("moving")])
def test_gallery_draws_every_geometry(case: str, tmp_path: Path) -> None:
    figure = gallery(stored(tmp_path, case), range(3, 5))
    pictures = 2 * 3
    keys = 0 if case == "line" else pictures
    assert len(figure.axes) == pictures + keys
    assert titles(figure) == ["a", "u [Pa]", "v"]
    assert [a.get_ylabel() for a in figure.axes if a.get_ylabel()] == ["row 3", "row 4"]
    assert render(figure) > 1000


@pytest.mark.parametrize("case", ["moving", "moving ragged"])
def test_gallery_draws_a_strip_of_frames_for_each_output(case: str, tmp_path: Path) -> None:
    figure = gallery(stored(tmp_path, case), range(3, 5))
    samples, outputs, frames = 2, 2, 2
    keys = samples + samples * outputs
    assert len(figure.axes) == samples + samples * outputs * frames + keys
    assert titles(figure) == ["a", "t = 0.5", "t = 1.5"]
    labels = [a.get_ylabel() for a in figure.axes if a.get_ylabel()]
    assert labels == ["row 3", "u [Pa]", "v", "row 4", "u [Pa]", "v"]
    assert render(figure) > 1000


def test_frames_of_a_strip_share_their_colours(tmp_path: Path) -> None:
    dataset = stored(tmp_path, "moving")
    images = [axes.images[0] for axes in gallery(dataset, [2]).axes if axes.images]
    _, first, last, *_ = images
    shown = dataset.outputs[2, :, :, 0]
    assert first.get_clim() == last.get_clim() == pytest.approx((shown.min(), shown.max()))
    for image, frame in ((first, 0), (last, 1)):
        values = image.get_array()
        assert values is not None
        np.testing.assert_array_equal(values.T.ravel(), shown[frame])


def test_frames_of_a_ragged_cloud_are_those_of_its_points(tmp_path: Path) -> None:
    ragged = stored(tmp_path, "moving ragged")
    clouds = [
        c
        for a in gallery(ragged, [2]).axes
        for c in a.collections
        if np.shape(c.get_offsets()) == (11, 2)
    ]
    values = [cloud.get_array() for cloud in clouds]
    assert len(values) == 1 + 2 * 2
    np.testing.assert_array_equal(values[2], ragged.outputs[20:31, -1, 0])


def test_gallery_of_a_ragged_cloud_draws_the_points_of_each_sample(tmp_path: Path) -> None:
    dataset = stored(tmp_path, "ragged")
    figure = gallery(dataset, [1, 2])
    clouds = [c for a in figure.axes for c in a.collections if isinstance(c, PathCollection)]
    counts = [np.asarray(cloud.get_offsets()).shape[0] for cloud in clouds]
    assert counts == [13, 13, 13, 11, 11, 11]
    drawn = clouds[1].get_array()
    assert drawn is not None
    np.testing.assert_array_equal(drawn, dataset.outputs[7:20, 0])


def test_outputs_are_drawn_as_asked_for(tmp_path: Path) -> None:
    outputs = (Channel(name="first"), Channel(name="second"))
    dataset = stored(tmp_path, "grid", outputs=outputs)
    assert titles(gallery(dataset, [0])) == ["a", "first", "second"]
    figure = gallery(dataset, [0], outputs=[1])
    assert titles(figure) == ["a", "second"]
    drawn = [axes.images[0].get_array() for axes in figure.axes if axes.images][1]
    assert drawn is not None
    np.testing.assert_allclose(np.sort(np.ravel(drawn)), np.sort(dataset.outputs[0, :, 1]))


def test_names_that_a_font_or_formula_could_choke_on_are_drawn(tmp_path: Path) -> None:
    outputs = (Channel(name="$\\broken{"), Channel(name="压力"))
    figure = gallery(stored(tmp_path, "grid", outputs=outputs), [0])
    assert titles(figure) == ["a", "$\\broken{", "□□"]
    assert render(figure) > 1000


@pytest.mark.parametrize("kind", ["grid", "structured", "cloud"])
def test_values_that_are_not_finite_leave_gaps(kind: Any) -> None:
    values = np.array([np.nan, 1.0, np.inf, 3.0])
    assert Scale.of(values) == Scale(1.0, 3.0)
    assert Scale.of(np.full(3, np.nan)) == Scale(0.0, 1.0)
    figure = Figure()
    coords = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    place = Place(coords, kind, None if kind == "cloud" else (2, 2))
    drawn = draw(figure.subplots(), place, values, Scale.of(values))
    assert drawn is not None
    shown: Array = np.ma.filled(np.ma.asarray(drawn.get_array()), np.nan)
    assert sorted(shown[np.isfinite(shown)].tolist()) == [1.0, 3.0]
    assert render(figure) > 1000


def test_a_constant_field_gets_a_scale_around_it() -> None:
    scale = Scale.of(np.full(4, 2.0))
    assert scale.low < 2.0 < scale.high


@pytest.mark.parametrize("swapped", [False, True])
def test_a_grid_is_drawn_where_its_nodes_are(swapped: bool) -> None:
    x, y = np.meshgrid([0.0, 1.0, 2.0], [10.0, 14.0], indexing="xy" if swapped else "ij")
    coords = np.stack((x, y), -1)
    axes = Figure().subplots()
    place = Place(coords.reshape(-1, 2), "grid", coords.shape[:2])
    draw(axes, place, (x + y).ravel(), Scale(0.0, 1.0))
    image = axes.images[0]
    assert list(image.get_extent()) == [-0.5, 2.5, 8.0, 16.0]
    np.testing.assert_array_equal(image.get_array(), [[10, 11, 12], [14, 15, 16]])


def test_a_structured_mesh_is_drawn_at_its_coordinates() -> None:
    coords = np.random.default_rng(0).random((6, 2))
    axes = Figure().subplots()
    draw(axes, Place(coords, "structured", (2, 3)), np.arange(6.0), Scale(0.0, 1.0))
    mesh = axes.collections[0]
    assert isinstance(mesh, QuadMesh)
    drawn = np.asarray(mesh.get_coordinates(), np.float64).reshape(-1, 2)
    np.testing.assert_allclose(drawn, coords)


def test_a_volume_shows_its_middle_slice_and_a_surface_its_broad_side() -> None:
    axes = np.meshgrid(range(2), range(3), range(5), indexing="ij")
    volume = Place(np.stack(axes, -1).reshape(-1, 3), "grid", (2, 3, 5))
    coords, values, shape = flatten(volume, volume.coords[:, 2])
    assert (coords.shape, shape, set(values.tolist())) == ((6, 2), (2, 3), {2})
    cloud = np.random.default_rng(0).random((9, 3)) * (5, 0.1, 3)
    seen, height, shape = flatten(Place(cloud, "cloud"), cloud[:, 1])
    assert shape is None
    assert (np.diff(height) > 0).all()
    np.testing.assert_array_equal(seen, cloud[np.argsort(cloud[:, 1])][:, [0, 2]])


def test_short_labels_tell_ticks_apart() -> None:
    assert short([2.5, 5.0, 7.5]) == ["2.5", "5.0", "7.5"]
    assert short([4.0, 6.0]) == ["4", "6"]
    assert drawable("x" * 99, 10) == "x" * 9 + "…"


def three_samples() -> list[Sample]:
    random = np.random.default_rng(0)
    place = Place(random.random((20, 2)), "cloud")
    return [
        Sample(label, row, 0.1 * row, place, *(random.random((20, 2)) for _ in range(3)))
        for row, label in enumerate(("best", "median", "worst"), 1)
    ]


def test_truth_and_prediction_share_colours_and_errors_share_theirs() -> None:
    samples = three_samples()
    channels = [Channel(name="a"), Channel(name="b")]
    figure = samples_figure(samples, channels, Channel(name="u", unit="m"), channel=1)
    assert len(figure.axes) == 3 * (5 + 4)  # four of the five pictures have a key
    assert titles(figure) == ["a", "b", "u [m], truth", "prediction", "absolute error"]
    drawn = [c for a in figure.axes for c in a.collections if isinstance(c, PathCollection)]
    for sample, line in zip(samples, (drawn[0:5], drawn[5:10], drawn[10:15]), strict=True):
        truth, prediction, error = line[2:]
        both = np.concatenate((sample.truth[:, 1], sample.prediction[:, 1]))
        assert truth.get_clim() == prediction.get_clim() == (both.min(), both.max())
        assert error.get_clim() == drawn[4].get_clim()
        assert error.get_cmap().name == ERROR
        expected = np.abs(sample.prediction[:, 1] - sample.truth[:, 1])
        np.testing.assert_array_equal(np.ma.asarray(error.get_array()), expected)
    texts = [text.get_text() for text in figure.texts]
    assert texts[1] == "median: row 2, relative L2 0.2"
    assert render(figure) > 1000


def test_eigenfunctions_are_signed_fields_with_their_eigenvalue() -> None:
    random = np.random.default_rng(0)
    eigen = Eigenfunctions(
        layer=1,
        row=7,
        place=Place(random.random((12, 2)), "structured", (3, 4)),
        heads=(0, 1),
        functions=np.array([[4, 2, 0], [1, 3, 2]]),
        mu=np.array([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4]]),
        fields=random.normal(size=(2, 3, 12)),
    )
    figure = eigenfunctions_figure(eigen)
    assert len(figure.axes) == 2 * 3 + 2
    labels = [a.get_title() for a in figure.axes if a.get_title()]
    assert labels[:2] == ["ψ4, μ 0.900", "ψ2, μ 0.800"]
    low, high = figure.axes[0].collections[0].get_clim()
    assert low == -high < 0
    assert render(figure) > 1000


def test_curves_show_each_loss_and_mark_the_choice() -> None:
    metrics = [
        {"epoch": 1, "train": 0.5, "learning_rate": 1e-3},
        {"epoch": 2, "train": float("nan"), "learning_rate": 1e-3, "validation": 0.3},
        {"epoch": 3, "train": 0.2, "learning_rate": 1e-4, "validation": 0.4},
    ]
    figure = curves(metrics, 2)
    losses, rate = figure.axes
    lines = {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in losses.lines}
    assert lines == {
        "training loss": [[1, 0.5], [3, 0.2]],
        "validation error": [[2, 0.3], [3, 0.4]],
        "chosen checkpoint": [[2, 0.3]],
    }
    assert losses.get_yscale() == "log"
    assert np.asarray(rate.lines[0].get_ydata()).tolist() == [1e-3, 1e-3, 1e-4]
    assert render(figure) > 1000
    assert render(curves(metrics[:1], width=3.6)) > 1000


def test_curves_without_a_finite_loss_are_drawn() -> None:
    figure = curves([{"epoch": 1, "train": float("nan"), "learning_rate": 1e-3}])
    assert figure.axes[0].get_yscale() == "linear"
    assert render(figure) > 1000


@pytest.mark.parametrize(("largest", "scale"), [(0.2, "linear"), (9.0, "log")])
def test_every_error_is_in_the_distribution(largest: float, scale: str) -> None:
    figure = error_distribution([0.1, 0.15, largest, float("nan")])
    curve, counts = figure.axes
    assert np.asarray(curve.lines[0].get_ydata()).tolist() == [0.1, 0.15, largest]
    assert sum(bar.get_width() for bar in counts.patches) == 3  # type: ignore[attr-defined]
    assert curve.get_yscale() == scale
    assert render(figure) > 1000


def test_resolutions_and_queries_are_told_apart_and_training_marked() -> None:
    levels = [
        Level("grid", 1849, "43 × 43", 0.12, 0.11, 0.3),
        Level("grid", 841, "29 × 29", 0.1, 0.09, 0.2),
        Level("query", 500, "500", 0.13, 0.12, 0.3),
    ]
    axes = resolution_figure(levels, 841).axes[0]
    lines = {line.get_label(): np.asarray(line.get_xdata()).tolist() for line in axes.lines}
    assert lines == {
        "inputs and outputs on a grid": [841, 1849],
        "scattered query points": [500],
        "training resolution": [841, 841],
    }
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["43 × 43", "29 × 29"]
    assert axes.get_ylim()[0] == 0
    assert render(resolution_figure(levels[2:], width=3.6)) > 1000


def test_a_gallery_says_what_it_leaves_out(tmp_path: Path) -> None:
    assert words(gallery(stored(tmp_path / "grid", "grid"), [0])) == []
    volume = gallery(stored(tmp_path / "volume", "volume"), [0])
    assert words(volume) == ["slice 2 of 2, z = 1"]
    dataset = stored(tmp_path / "cloud", "cloud")
    many = tuple(Channel(name=f"c{k}") for k in range(5))
    arrays = dict(dataset.arrays)
    arrays |= {"outputs": np.zeros((5, 12, 5)), "params": np.zeros((5, 3))}
    info = dataset.info.model_copy(update={"outputs": many, "params": many[:3], "files": {}})
    full = gallery(write_dataset(tmp_path / "many", info, arrays), [0, 1])
    assert words(full) == ["3 of 5 outputs; 2 of 3 params"]
    assert render(full) > 0
