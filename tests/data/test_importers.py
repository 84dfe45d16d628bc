from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io

from ono.data.check import check
from ono.data.draft import Draft, parse_splits, write
from ono.data.importers import Request, parse_channels, read_arrays
from ono.data.info import Array, Channel
from ono.data.layout import parse_layout
from ono.data.store import Dataset
from ono.errors import DataError, InputError, OnoError

SAMPLES, NX, NY = 10, 12, 9
X, Y = np.meshgrid(np.linspace(0, 2, NX), np.linspace(0, 1, NY), indexing="ij")


def smooth(seed: int, x: Array = X, y: Array = Y, samples: int = SAMPLES) -> Array:
    """Return random smooth fields [samples *x.shape]."""
    random, total = np.random.default_rng(seed), np.zeros((samples, *x.shape))
    for i in range(3):
        for j in range(3):
            amplitude = random.standard_normal((samples, *(1 for _ in x.shape)))
            total += amplitude * np.cos(i * x) * np.cos(j * y) / (1 + i + j)
    return total


def stored(draft: Draft, path: Path, shuffle: int | None = None) -> Dataset:
    draft = draft.shuffled(shuffle)
    return write(draft.dataset(path, "mine", "6/2/2", shuffle), draft.sources)


def saved(path: Path, **arrays: Array) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def test_a_grid_in_an_npz_file(tmp_path: Path) -> None:
    a, u = smooth(0), np.stack([smooth(1), smooth(2)], -1)
    file = saved(tmp_path / "g.npz", a=a, u=u, x=X[:, 0], y=Y[0])
    request = Request(
        outputs=(f"{file}:u",),
        inputs=(f"{file}:a",),
        coords=(f"{file}:x", f"{file}:y"),
        names={"outputs": parse_channels("p [Pa], q")},
    )
    dataset = stored(read_arrays(request), tmp_path / "out")
    info = dataset.info
    assert (info.task, info.mesh.kind, info.mesh.shape) == ("steady", "grid", (NX, NY))
    assert info.inputs == (Channel(name="a"),)
    assert info.outputs == (Channel(name="p", unit="Pa"), Channel(name="q"))
    assert info.splits == {"train": (0, 6), "validation": (6, 8), "test": (8, 10)}
    np.testing.assert_allclose(dataset.coords, np.stack([X, Y], -1).reshape(-1, 2), rtol=1e-6)
    np.testing.assert_array_equal(dataset.outputs[3], np.float32(u[3]).reshape(-1, 2))
    np.testing.assert_array_equal(dataset.inputs[3, :, 0], np.float32(a[3]).ravel())
    assert f"{file}:u [b x y c]" in str(info.provenance.settings["outputs"])
    assert check(dataset) == []


def test_a_point_cloud_in_an_hdf5_file(tmp_path: Path) -> None:
    points = np.random.default_rng(3).random((40, 2))
    values = smooth(4, points[:, 0], points[:, 1])
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["points"], file["fields/in"], file["fields/out"] = points, values, values**2
        file["weights"] = np.full(40, 0.5)
    request = Request(
        outputs=(f"{tmp_path}/c.h5:fields/out",),
        inputs=(f"{tmp_path}/c.h5:fields/in",),
        coords=(f"{tmp_path}/c.h5:points",),
        weights=f"{tmp_path}/c.h5:weights",
    )
    dataset = stored(read_arrays(request), tmp_path / "out")
    assert (dataset.info.mesh.kind, dataset.info.mesh.shared) == ("cloud", True)
    assert [channel.name for channel in dataset.info.outputs] == ["out"]
    np.testing.assert_array_equal(dataset.outputs[..., 0], np.float32(values**2))
    assert dataset.weights is not None
    assert dataset.weights.shape == (40,)


def test_parameters_to_a_field_in_a_mat_file(tmp_path: Path) -> None:
    mu, u = np.random.default_rng(0).random((SAMPLES, 2)), smooth(1)
    scipy.io.savemat(tmp_path / "p.mat", {"mu": mu, "u": u})
    request = Request(outputs=(f"{tmp_path}/p.mat:u",), params=(f"{tmp_path}/p.mat:mu",))
    draft = read_arrays(request)
    assert any("unit grid" in note for note in draft.notes)
    dataset = stored(draft, tmp_path / "out")
    assert dataset.inputs.shape == (SAMPLES, NX * NY, 0)
    assert [channel.name for channel in dataset.info.params] == ["mu_0", "mu_1"]
    np.testing.assert_array_equal(dataset.params, np.float32(mu))
    assert dataset.coords[-1].tolist() == [1, 1]


def test_a_table_names_the_parameters(tmp_path: Path) -> None:
    rows = "\n".join(f"{k},{k / 10}" for k in range(SAMPLES))
    (tmp_path / "p.csv").write_text(f"load,angle\n{rows}\n")
    file = saved(tmp_path / "u.npz", u=smooth(0))
    draft = read_arrays(Request(outputs=(f"{file}:u",), params=(f"{tmp_path}/p.csv",)))
    assert [channel.name for channel in draft.params] == ["load", "angle"]
    assert draft.arrays["params"][3].tolist() == pytest.approx([3, 0.3])


def test_several_files_become_channels(tmp_path: Path) -> None:
    file = saved(tmp_path / "g.npz", a=smooth(0), k=smooth(1)[..., None], u=smooth(2))
    draft = read_arrays(Request(outputs=(f"{file}:u",), inputs=(f"{file}:a", f"{file}:k")))
    assert [channel.name for channel in draft.inputs] == ["a", "k"]
    np.testing.assert_array_equal(draft.arrays["inputs"][2, :, 1], np.float32(smooth(1)[2]).ravel())


def moving(path: Path) -> str:
    frames = np.stack([smooth(0) * np.cos(t) for t in (0.0, 0.5, 2.0)], -1)
    return saved(path, w=frames, t=np.array([0.0, 0.5, 2.0]), a=smooth(0))


def test_frames_alone_are_a_rollout_and_with_inputs_timed(tmp_path: Path) -> None:
    file = moving(tmp_path / "m.npz")
    rollout = read_arrays(Request(outputs=(f"{file}:w",), times=f"{file}:t", periodic=True))
    assert (rollout.task, rollout.mesh.periodic) == ("rollout", True)
    assert rollout.arrays["outputs"].shape == (SAMPLES, 3, NX * NY, 1)
    np.testing.assert_allclose(
        rollout.arrays["outputs"][4, 1, :, 0], (smooth(0)[4] * np.cos(0.5)).ravel(), rtol=1e-5
    )
    assert rollout.arrays["coords"][-1].tolist() == pytest.approx([1 - 1 / NX, 1 - 1 / NY])
    assert check(rollout.dataset(tmp_path, "m", "6/2/2", None)) == []
    inputs = (f"{file}:a",)
    assert read_arrays(Request((f"{file}:w",), inputs, times=f"{file}:t")).task == "timed"
    asked = Request((f"{file}:w",), inputs, times=f"{file}:t", task="rollout")
    assert read_arrays(asked).task == "rollout"


@pytest.mark.parametrize(
    ("times", "complaint"),
    [
        (1.7e9 + 200.0 * np.arange(3), "move by up to"),
        (1.7e9 + 200.0 * np.arange(3000), "steps change, such as 200 to 256"),
        (1e8 + np.arange(3.0), "move by up to"),
        (10 ** np.arange(37.0, 41.0), "too large for float32"),
    ],
)
def test_times_that_lose_their_steps_are_refused(
    tmp_path: Path, times: Array, complaint: str
) -> None:
    w = np.random.default_rng(0).random((SAMPLES, len(times), 5, 2))
    file = saved(tmp_path / "m.npz", w=w, t=times)
    with pytest.raises(InputError, match=f"times .*{complaint}.*scale them"):
        read_arrays(Request((f"{file}:w",), times=f"{file}:t"))


@pytest.mark.parametrize(
    "times",
    [10.0 ** np.arange(-9, 4), np.linspace(0, 10, 2001), 3600 * np.arange(9), np.array([1e9])],
)
def test_times_of_any_spacing_are_kept(tmp_path: Path, times: Array) -> None:
    w = np.random.default_rng(0).random((SAMPLES, len(times), 5, 2))
    file = saved(tmp_path / "m.npz", w=w, a=w[:, 0, :, 0], t=times)
    layouts: Any = {"outputs": parse_layout("b t x c")}
    request = Request((f"{file}:w",), (f"{file}:a",), times=f"{file}:t", layouts=layouts)
    np.testing.assert_array_equal(read_arrays(request).arrays["times"], np.float32(times))


def test_a_time_axis_without_times_is_numbered(tmp_path: Path) -> None:
    file = moving(tmp_path / "m.npz")
    draft = read_arrays(Request((f"{file}:w",), layouts={"outputs": parse_layout("b x y t")}))
    assert draft.arrays["times"].tolist() == [0, 1, 2]
    assert any("numbered" in note for note in draft.notes)


def test_coords_that_are_no_uniform_grid_are_structured_and_said_so(tmp_path: Path) -> None:
    file = saved(tmp_path / "g.npz", a=smooth(0), u=smooth(1), x=X**2 + 1, y=Y, z=X)
    base = {"outputs": (f"{file}:u",), "inputs": (f"{file}:a",), "mesh": "grid"}
    draft = read_arrays(Request(**base, coords=(f"{file}:x", f"{file}:y")))  # type: ignore[arg-type]
    assert (draft.mesh.kind, draft.mesh.shape) == ("structured", (NX, NY))
    assert any("called structured" in note for note in draft.notes)


def test_meshes_of_their_own_and_a_mesh_repeated(tmp_path: Path) -> None:
    scale = 1 + np.arange(SAMPLES)[:, None, None] / 10
    own = np.stack([X * scale, Y * scale], -1)
    same = np.broadcast_to(own[:1], own.shape)
    file = saved(tmp_path / "g.npz", u=smooth(1), a=smooth(0), own=own, same=same)
    draft = read_arrays(Request((f"{file}:u",), coords=(f"{file}:own",)))
    assert (draft.mesh.kind, draft.mesh.shared) == ("structured", False)
    assert draft.arrays["coords"].shape == (SAMPLES, NX * NY, 2)
    draft = read_arrays(Request((f"{file}:u",), (f"{file}:a",), coords=(f"{file}:same",)))
    assert (draft.mesh.kind, draft.mesh.shared) == ("grid", True)


def test_a_list_of_grid_nodes_gets_its_shape_back(tmp_path: Path) -> None:
    nodes = np.stack([X, Y], -1).reshape(-1, 2)
    flat = smooth(0).reshape(SAMPLES, -1)
    file = saved(tmp_path / "g.npz", u=flat, a=flat + 1, c=nodes, wrong=nodes[::-1])
    sources: Any = {"outputs": (f"{file}:u",), "inputs": (f"{file}:a",), "mesh": "grid"}
    draft = read_arrays(Request(**sources, coords=(f"{file}:c",)))
    assert (draft.mesh.kind, draft.mesh.shape) == ("grid", (NX, NY))
    with pytest.raises(InputError, match="does not tell the shape"):
        read_arrays(Request(**sources, coords=(f"{file}:wrong",)))


def test_samples_last_with_a_spoken_layout(tmp_path: Path) -> None:
    points = np.random.default_rng(0).random((SAMPLES, 30, 2))
    values = points.sum(-1)
    file = saved(tmp_path / "e.npz", xy=points.transpose(1, 2, 0), s=values.T)
    layouts: Any = {"outputs": parse_layout("p b"), "coords": parse_layout("p c b")}
    draft = read_arrays(Request((f"{file}:s",), coords=(f"{file}:xy",), layouts=layouts))
    np.testing.assert_array_equal(draft.arrays["coords"], np.float32(points))
    np.testing.assert_array_equal(draft.arrays["outputs"][..., 0], np.float32(values))


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({"outputs": ()}, "nothing to predict"),
        ({"outputs": ("u2",), "inputs": ("a",)}, "did you mean u"),
        ({"outputs": ("u",)}, "nothing tells the samples apart"),
        ({"outputs": ("u",), "inputs": ("few",)}, "inputs 7, outputs 10"),
        ({"outputs": ("u",), "inputs": ("turned",)}, '--layout inputs="b y x"'),
        ({"outputs": ("objects",), "inputs": ("a",)}, "objects"),
        ({"outputs": ("u",), "inputs": ("huge",)}, "too large for float32"),
        ({"outputs": ("u",), "inputs": ("offset",)}, "subtract an offset, or scale them"),
        ({"outputs": ("u",), "inputs": ("tiny",)}, "all of them lie within"),
        ({"outputs": ("u",), "inputs": ("whole",)}, "numbers as large as 1.099512e+12"),
        ({"outputs": ("u",), "inputs": ("a", "a")}, "name them: --names inputs"),
        ({"outputs": ("u",), "inputs": ("a",), "times": "t"}, "do not fit"),
        ({"outputs": ("u",), "inputs": ("a",), "times": "back"}, "increasing"),
        ({"outputs": ("u",), "inputs": ("a",), "task": "timed"}, "needs a time axis"),
        ({"outputs": ("w",), "times": "t", "task": "steady"}, "no time axis"),
        ({"outputs": ("u",), "inputs": ("a",), "coords": ("c",), "periodic": True}, "--periodic"),
        ({"outputs": ("u",), "inputs": ("none",)}, "is empty"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, request_: dict[str, Any], complaint: str) -> None:
    file = tmp_path / "g.npz"
    odd = np.array([[None, {}]] * SAMPLES, object)
    huge = smooth(0) * 1e60
    np.savez(
        file,
        allow_pickle=True,
        u=smooth(0),
        a=smooth(1),
        few=smooth(1)[:7],
        turned=smooth(1).mT,
        objects=odd,
        huge=huge,
        offset=1e6 + 1e-3 * smooth(0),
        tiny=1e-60 * smooth(0),
        whole=(2**40 + 10 * smooth(0)).astype(np.int64),
        t=np.arange(3.0),
        back=np.array([2.0, 1.0, 0.0]),
        w=np.stack([smooth(0)] * 3, -1),
        c=np.stack([X**2, Y], -1),
        none=np.zeros((0, 3)),
    )

    def full(value: Any) -> Any:
        return tuple(f"{file}:{key}" for key in value)

    given = {k: full(v) if isinstance(v, tuple) else v for k, v in request_.items()}
    if "times" in given:
        given["times"] = f"{file}:{given['times']}"
    with pytest.raises(InputError) as error:
        read_arrays(Request(**given))
    assert complaint in str(error.value)


def test_nothing_is_written_when_values_are_missing(tmp_path: Path) -> None:
    u = smooth(0)
    u[4, 2, 2] = np.nan
    file = saved(tmp_path / "g.npz", u=u, a=smooth(1))
    draft = read_arrays(Request((f"{file}:u",), (f"{file}:a",)))
    with pytest.raises(DataError, match="outputs: 1 values are not finite in 1 samples: 4"):
        stored(draft, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["g.npz"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(tmp_path / "g.npz", u=smooth(0), a=smooth(1))
    draft = read_arrays(Request((f"{file}:u",), (f"{file}:a",)))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ono.data.store.write_info", full)
    with pytest.raises(OnoError, match="No space left"):
        stored(draft, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["g.npz"]


def test_the_coordinates_of_a_cloud_in_files_of_their_own(tmp_path: Path) -> None:
    points = np.random.default_rng(0).random((SAMPLES, 2))
    values = smooth(0, points[:, 0], points[:, 1])
    file = saved(tmp_path / "g.npz", u=values, a=values + 1, x=points[:, 0], y=points[:, 1])
    coords = (f"{file}:x", f"{file}:y")
    draft = read_arrays(Request((f"{file}:u",), (f"{file}:a",), coords=coords))
    assert (draft.mesh.kind, draft.mesh.dim) == ("cloud", 2)
    np.testing.assert_array_equal(draft.arrays["coords"], np.float32(points))


def test_what_exists_is_not_overwritten(tmp_path: Path) -> None:
    file = saved(tmp_path / "g.npz", u=smooth(0), a=smooth(1))
    draft = read_arrays(Request((f"{file}:u",), (f"{file}:a",)))
    (tmp_path / "out").mkdir()
    stored(draft, tmp_path / "out")
    before = (tmp_path / "out" / "dataset.json").read_bytes()
    with pytest.raises(InputError, match="already exists"):
        stored(draft, tmp_path / "out")
    assert (tmp_path / "out" / "dataset.json").read_bytes() == before


def test_shuffling_moves_whole_samples_and_is_repeatable(tmp_path: Path) -> None:
    file = saved(tmp_path / "g.npz", u=smooth(0), m=np.arange(SAMPLES))
    draft = read_arrays(Request((f"{file}:u",), params=(f"{file}:m",)))
    one, two = draft.shuffled(5), draft.shuffled(5)
    order = one.arrays["params"][:, 0].astype(int)
    assert order.tolist() != list(range(SAMPLES))
    assert sorted(order) == list(range(SAMPLES))
    np.testing.assert_array_equal(one.arrays["outputs"], draft.arrays["outputs"][order])
    np.testing.assert_array_equal(one.arrays["outputs"], two.arrays["outputs"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0.8/0.2", "train/validation/test"),
        ("a/b/c", "train/validation/test"),
        ("0.5/0.1/0.1", "add up to 1"),
        ("8/2/2", "asks for 12 samples, there are 10"),
        ("-1/1/1", "train/validation/test"),
    ],
)
def test_splits_that_cannot_be(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_splits(text, 10)


@pytest.mark.parametrize("channels", [(), (1,), (2,)])
def test_as_many_points_as_samples_are_a_shared_cloud(
    tmp_path: Path, channels: tuple[int, ...]
) -> None:
    random = np.random.default_rng(0)
    x, y = random.random((2, SAMPLES))
    u = random.random((SAMPLES, SAMPLES, *channels))
    file = saved(tmp_path / "g.npz", u=u, x=x, y=y[:, None], a=u[:, :, 0] if channels else u)
    coords = (f"{file}:x", f"{file}:y")
    draft = read_arrays(Request((f"{file}:u",), (f"{file}:a",), coords=coords))
    assert (draft.mesh.kind, draft.mesh.shared, draft.mesh.dim) == ("cloud", True, 2)
    np.testing.assert_array_equal(draft.arrays["coords"], np.float32(np.stack([x, y], -1)))
    np.testing.assert_array_equal(draft.arrays["outputs"], np.float32(u.reshape(SAMPLES, 10, -1)))


def test_lists_of_one_length_are_grid_axes_unless_channels_are_few(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    u = random.random((SAMPLES, 12, 12))
    few = random.random((SAMPLES, 6, 6))
    axis, short = np.linspace(0, 1, 12), np.linspace(0, 1, 6)
    file = saved(tmp_path / "g.npz", u=u, few=few, x=axis, y=2 * axis, s=short, t=2 * short)

    def read(key: str, *coords: str, mesh: Any = None) -> Draft:
        sources, places = (f"{file}:{key}",), tuple(f"{file}:{name}" for name in coords)
        return read_arrays(Request(sources, sources, coords=places, mesh=mesh))

    assert read("u", "x", "y").mesh.shape == (12, 12)
    with pytest.raises(InputError, match="--mesh grid or --mesh cloud"):
        read("few", "s", "t")
    assert read("few", "s", "t", mesh="grid").mesh.shape == (6, 6)
    assert len(read("few", "s", "t", mesh="cloud").outputs) == 6


def test_axes_may_come_in_another_order_than_in_the_array(tmp_path: Path) -> None:
    a, u = smooth(0), smooth(1)
    file = saved(tmp_path / "g.npz", a=a.mT, u=u.mT, x=X[:, 0], y=Y[0])
    sources: Any = {"inputs": (f"{file}:a",), "coords": (f"{file}:x", f"{file}:y")}
    with pytest.raises(InputError, match='--layout outputs="b y x"'):
        read_arrays(Request((f"{file}:u",), **sources))
    said = parse_layout("b y x")
    layouts: Any = {"inputs": said, "outputs": said}
    draft = read_arrays(Request((f"{file}:u",), **sources, layouts=layouts))
    assert (draft.mesh.kind, draft.mesh.shape) == ("grid", (NX, NY))
    np.testing.assert_array_equal(draft.arrays["outputs"][..., 0], np.float32(u).reshape(10, -1))
    nodes = np.stack([X, Y], -1).reshape(-1, 2)
    np.testing.assert_allclose(draft.arrays["coords"], nodes, rtol=1e-6)


def test_points_that_fall_together_in_single_precision_are_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    points, u = random.random((40, 2)), random.random((SAMPLES, 40))
    north = np.array([0.0, 4.5e8])
    far = points + north
    own = np.stack([points * (1 + k) for k in range(SAMPLES)])
    own[7] += 4.5e8
    cut = np.concatenate([points[:20], points[:20] + 1e-16])
    file = saved(tmp_path / "g.npz", u=u, a=u + 1, far=far, own=own, near=far - north, cut=cut)

    def read(key: str) -> Draft:
        return read_arrays(Request((f"{file}:u",), (f"{file}:a",), coords=(f"{file}:{key}",)))

    for key in ("far", "own"):
        with pytest.raises(InputError, match="subtract an offset"):
            read(key)
    assert read("near").mesh.kind == read("cut").mesh.kind == "cloud"


@pytest.mark.parametrize("kind", [np.int32, np.uint32, np.int64])
def test_whole_numbers_keep_their_digits_or_are_refused(tmp_path: Path, kind: Any) -> None:
    near = np.arange(SAMPLES * 40).reshape(SAMPLES, 40)
    far, lists = (near + 2_000_000_000).astype(kind), np.arange(80).reshape(40, 2)
    file = saved(
        tmp_path / "g.npz",
        near=near.astype(kind),
        far=far,
        places=lists.astype(kind),
        away=(lists + 2_000_000_000).astype(kind),
        few=far[:, :2],
    )
    plain = {"outputs": "near", "inputs": "near", "coords": "places"}

    def read(**other: str) -> Draft:
        given = {role: (f"{file}:{key}",) for role, key in {**plain, **other}.items()}
        return read_arrays(Request(**given))  # type: ignore[arg-type]

    np.testing.assert_array_equal(read().arrays["outputs"][..., 0], near)
    for role, key in (("outputs", "far"), ("inputs", "far"), ("coords", "away"), ("params", "few")):
        with pytest.raises(InputError, match="subtract an offset"):
            read(**{role: key})


def test_a_channel_named_twice_is_an_input_error(tmp_path: Path) -> None:
    file = saved(tmp_path / "g.npz", u=np.stack([smooth(0), smooth(1)], -1), a=smooth(2))
    names: Any = {"outputs": parse_channels("p, p")}
    draft = read_arrays(Request((f"{file}:u",), (f"{file}:a",), names=names))
    with pytest.raises(InputError, match="outputs has 'p' twice"):
        draft.dataset(tmp_path, "m", "6/2/2", None)


def test_a_rollout_needs_two_frames(tmp_path: Path) -> None:
    file = saved(tmp_path / "m.npz", w=smooth(0)[:, None], t=np.zeros(1))
    layouts: Any = {"outputs": parse_layout("b t x y")}
    draft = read_arrays(Request((f"{file}:w",), times=f"{file}:t", layouts=layouts))
    with pytest.raises(InputError, match="got 1 frame"):
        draft.dataset(tmp_path, "m", "6/2/2", None)


def test_a_table_with_file_names_is_not_for_arrays(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("file,load\n" + "\n".join(f"u{k}.npy,{k}" for k in range(10)))
    file = saved(tmp_path / "u.npz", u=smooth(0))
    with pytest.raises(InputError, match="column `file`"):
        read_arrays(Request(outputs=(f"{file}:u",), params=(f"{tmp_path}/p.csv",)))
