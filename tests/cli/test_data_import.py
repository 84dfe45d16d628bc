from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from ono.cli.data import app as verbs
from ono.cli.data_import import import_data
from ono.data.store import Dataset
from ono.errors import InputError

app = typer.Typer()
app.command()(import_data)
runner = CliRunner()

SAMPLES, NX, NY = 10, 12, 9


def run(*arguments: object) -> Result:
    return runner.invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, InputError), result.output
    assert result.exception.exit_code == 2
    return str(result.exception)


@pytest.fixture
def arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    x, y = np.meshgrid(np.linspace(0, 2, NX), np.linspace(0, 1, NY), indexing="ij")
    a = np.cos(x * random.random((SAMPLES, 1, 1))) + y
    frames = np.stack([a, a**2, a**3], 1)[..., None]
    np.savez(
        tmp_path / "d.npz", a=a, u=a**2, x=x[:, 0], y=y[0], w=frames, bad=np.where(x > 0, a, np.inf)
    )
    return tmp_path / "d.npz"


GRID = ("--inputs", "a", "--outputs", "u", "--coords", "x", "--coords", "y")


def test_import_writes_a_dataset_and_says_in_which_order(arrays: Path) -> None:
    result = run(
        "--from", arrays, *GRID, "--splits", "6/2/1", "--names", "outputs=p [Pa]", "--out", "o"
    )
    assert result.exit_code == 0, result.exception
    assert "imported o: 10 samples in file order (train 6, validation 2, test 1)" in result.output
    assert "outputs from" in result.output
    assert "d.npz:u [b x y]" in result.output
    assert "note: samples in file order" in result.output
    assert result.stderr == ""
    dataset = Dataset.open("o", verify=True)
    assert dataset.info.name == "o"
    assert dataset.summary()["made by"] == "import"
    assert (dataset.info.outputs[0].name, dataset.info.outputs[0].unit) == ("p", "Pa")
    assert "already exists" in refused("--from", arrays, *GRID, "--out", "o")


def test_the_command_that_shows_it_can_be_copied(arrays: Path) -> None:
    result = run("--from", arrays, *GRID, "--out", "Daten Ü/d été")
    assert "look at it with `ono data show 'Daten Ü/d été'`" in result.output, result.exception


def test_a_dry_run_tells_everything_and_writes_one_picture(arrays: Path) -> None:
    result = run("--from", arrays, *GRID, "--shuffle", 3, "--dry-run")
    assert result.exit_code == 0, result.exception
    for text in (
        "task: steady",
        "mesh: grid 12 x 9, shared by all samples, 2-dimensional",
        "samples: 10 (train 0:8, validation 8:9, test 9:10)",
        "inputs: [10, 108, 1]",
        "x: 0 to 2",
        "d.npz:a [b x y]",
        "note: samples shuffled with seed 3",
        "only preview.png was written",
    ):
        assert text in result.output
    assert sorted(path.name for path in arrays.parent.iterdir()) == ["d.npz", "preview.png"]
    assert Path("preview.png").read_bytes().startswith(b"\x89PNG")


def test_a_dry_run_lists_what_is_wrong_and_leaves_with_2(arrays: Path) -> None:
    bad = ("--from", arrays, "--inputs", "a", "--outputs", "bad")
    result = run(*bad, "--dry-run", "--preview", "p.png")
    assert result.exit_code == 2
    assert (
        "fatal: outputs: 90 values are not finite in 10 samples: 0, 1, 2, 3, 4, ..."
        in result.output
    )
    assert "not finite" in refused(*bad, "--out", "o")
    assert not Path("o").exists()


def test_frames_by_layout(arrays: Path) -> None:
    common = ("--from", arrays, "--outputs", "w", "--dry-run", "--layout")
    result = run(*common, "b t x y c", "--inputs", "a")
    assert "task: timed" in result.output, result.exception
    result = run(*common, "outputs=b t x y c", "--periodic")
    assert "task: rollout" in result.output, result.exception
    assert "mesh: grid 12 x 9, shared by all samples, 2-dimensional, periodic" in result.output


def test_frames_that_were_read_as_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    np.savez("ro.npz", u=random.random((20, 5, 7, 9)), t=np.arange(5), p=random.random((20, 30, 2)))
    np.save("places.npy", random.random((30, 2)))
    message = refused("--outputs", "ro.npz:u", "--out", "ro")
    assert "read as ro.npz:u [b x y z]; give --inputs, --params, or coords" in message
    assert 'such as --layout outputs="b t x y", or give --times' in message
    for way in (("--layout", "outputs=b t x y"), ("--times", "ro.npz:t")):
        result = run("--outputs", "ro.npz:u", *way, "--dry-run")
        assert "task: rollout" in result.output, result.exception
        assert "mesh: grid 7 x 9" in result.output
    np.save("last.npy", random.random((20, 16, 16, 10)))
    message = refused("--outputs", "last.npy", "--out", "o")
    assert 'such as --layout outputs="b x y t", or give --times' in message
    cloud = ("--outputs", "ro.npz:p", "--coords", "places.npy", "--mesh", "cloud")
    assert '--layout outputs="b p t"' in refused(*cloud, "--out", "o")
    assert "task: rollout" in run(*cloud, "--layout", "outputs=b p t", "--dry-run").output
    message = refused("--outputs", "ro.npz:u", "--layout", "b x y z", "--out", "o")
    assert "read as ro.npz:u [b x y z]" in message
    assert "time" not in message


def test_one_number_is_no_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("f.npz", u=np.random.default_rng(0).random((10, 12)), s=1.0, x=np.linspace(0, 1, 12))
    coords = ("--coords", "f.npz:s", "--coords", "f.npz:x")
    message = refused("--outputs", "f.npz:u", *coords, "--out", "o")
    assert "coords f.npz:s is one number, not an array" in message
    assert "params f.npz:s is one number" in refused(
        "--outputs", "f.npz:u", "--params", "f.npz:s", "--out", "o"
    )


@pytest.mark.parametrize("name", ["d.npz", "mesh.vtu", "new", "picture.pdf"])
def test_a_dry_run_draws_in_no_other_file_than_a_picture(arrays: Path, name: str) -> None:
    Path("mesh.vtu").write_text("<VTKFile>")
    before = {path: path.read_bytes() for path in Path().iterdir()}
    message = refused("--from", arrays, *GRID, "--dry-run", "--preview", name)
    assert message == f"{name} is no .png file, which the picture is; end --preview in .png"
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_a_folder_of_array_files(arrays: Path) -> None:
    with np.load(arrays) as content:
        np.save("in.npy", content["a"])
        np.save("out.npy", content["u"])
    arrays.unlink()
    result = run("--from", ".", "--inputs", "in.npy", "--outputs", "out.npy", "--out", "o")
    assert result.exit_code == 0, result.exception
    assert [channel.name for channel in Dataset.open("o").info.inputs] == ["in"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((*GRID,), "--out, or use --dry-run"),
        ((*GRID, "--out", "o", "--task", "study"), "did you mean steady"),
        ((*GRID, "--out", "o", "--mesh", "gird"), "did you mean grid"),
        ((*GRID, "--out", "o", "--names", "pressure"), "ROLE=name"),
        ((*GRID, "--out", "o", "--names", "output=p"), "did you mean outputs"),
        ((*GRID, "--out", "o", "--names", "outputs=p,q"), "2 names for 1 channels"),
        ((*GRID, "--out", "o", "--layout", "b y x q"), "'q'"),
        ((*GRID, "--out", "o", "--splits", "9/9/9"), "asks for 27 samples"),
        (("--inputs", "a", "--outputs", "v", "--out", "o"), "has no 'v'"),
        ((*GRID, "--out", "o", "--names", "outputs=p", "--preview", "p.png"), "--dry-run"),
        ((*GRID, "--out", "o", "--validation", "3"), "official files"),
        ((*GRID, "--out", "o", "--pairing", "released"), "official files"),
    ],
)
def test_mistakes_write_nothing(arrays: Path, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in refused("--from", arrays, *arguments)
    assert list(arrays.parent.iterdir()) == [arrays]


def test_places_that_hold_nothing(tmp_path: Path) -> None:
    fields = ("--inputs", "a", "--outputs", "u", "--out", tmp_path / "o")
    assert "there is no" in refused("--from", tmp_path / "nowhere", *fields)
    assert "holds no mesh files" in refused("--from", tmp_path, *fields)


def test_hidden_mesh_files_do_not_make_a_folder_of_meshes(arrays: Path) -> None:
    (arrays.parent / "._m.vtu").write_bytes(b"\0\5")
    fields = ("--inputs", "d.npz:a", "--outputs", "d.npz:u")
    result = run("--from", arrays.parent, *fields, "--out", "o")
    assert result.exit_code == 0, result.exception


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    meshio = pytest.importorskip("meshio")
    folder = tmp_path / "meshes"
    folder.mkdir()
    for k in range(5):
        points = np.random.default_rng(k).random((20 + k, 2))
        points = np.concatenate([points, [[0, 0], [1, 0], [1, 1], [0, 1]]])
        corners = len(points) - np.array([[4, 3, 2, 1]])
        data = {"load": points[:, 0] + k, "stress": points[:, 1] * points[:, 0]}
        mesh = meshio.Mesh(np.c_[points, 0 * points[:, 0]], [("quad", corners)], point_data=data)
        mesh.write(folder / f"m{k}.vtu")
    return folder


def test_a_folder_of_meshes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    fields = ("--from", folder, "--inputs", "load", "--outputs", "stress", "--splits", "3/1/1")
    assert "the mesh files say it" in refused(*fields, "--coords", "x", "--out", out)
    assert f"--from {folder}" in refused("--from", folder / "m0.vtu", *fields[2:], "--out", out)
    spaced = ("--inputs", " load , stress", "--outputs", "stress ", "--dry-run")
    result = run("--from", folder, *spaced, "--preview", tmp_path / "p.png")
    assert "inputs: [130, 2]" in result.output, result.exception
    twice = ("--inputs", "load,load", "--outputs", "stress", "--out", out)
    assert "inputs has 'load' twice" in refused("--from", folder, *twice)
    assert "steady clouds" in refused(*fields, "--task", "rollout", "--out", out)
    result = run(*fields, "--names", "outputs=sigma [MPa]", "--out", out)
    assert result.exit_code == 0, result.exception
    assert (out / "sources.json").exists()
    assert Dataset.open(out).info.outputs[0].unit == "MPa"


def test_findings_name_mesh_files(folder: Path, tmp_path: Path) -> None:
    (folder / "m0.vtu").write_bytes((folder / "m1.vtu").read_bytes())
    out, told = tmp_path / "o", "of the same split in 1 files: m1.vtu like m0.vtu"
    fields = ("--from", folder, "--inputs", "load", "--outputs", "stress", "--splits", "3/1/1")
    assert told in run(*fields, "--dry-run", "--preview", tmp_path / "p.png").output
    assert run(*fields, "--out", out).exit_code == 0
    assert told in runner.invoke(verbs, ["check", str(out)]).output
    for damaged in ("{", '{"coordinates": [0, 1], "folder": "f", "rows": []}'):
        (out / "sources.json").write_text(damaged)
        assert "in 1 samples: 1 like 0" in runner.invoke(verbs, ["check", str(out)]).output


def test_a_key_comes_before_what_lies_here(arrays: Path) -> None:
    Path("a").mkdir()
    Path("u").write_text("not an array")
    result = run("--from", arrays, *GRID, "--out", "o")
    assert result.exit_code == 0, result.exception
    assert "d.npz:a [b x y]" in result.output


def test_axes_in_the_order_that_is_said(arrays: Path) -> None:
    with np.load(arrays) as content:
        turned = {key: content[key].mT if key in "au" else content[key] for key in content}
    np.savez("turned.npz", **turned)
    result = run("--from", "turned.npz", *GRID, "--layout", "b y x", "--out", "o")
    assert result.exit_code == 0, result.exception
    assert run("--from", arrays, *GRID, "--out", "p").exit_code == 0
    assert Dataset.open("o").sha256 == Dataset.open("p").sha256


def test_a_split_that_is_missing_is_a_warning(arrays: Path) -> None:
    result = run("--from", arrays, *GRID, "--splits", "8/0/2", "--out", "o")
    assert "warning: no samples for validation; `ono train` needs both" in result.stderr
    result = run("--from", arrays, *GRID, "--splits", "1/0/0", "--out", "p")
    assert "warning: no samples for validation and test" in result.stderr


def test_a_seed_is_not_negative(arrays: Path) -> None:
    result = run("--from", arrays, *GRID, "--shuffle", "-1", "--out", "o")
    assert result.exit_code == 2
    assert "--shuffle" in result.stderr
    assert not Path("o").exists()


OFFICIAL = [
    ("--splits", "0.8/0.1/0.1"),
    ("--shuffle", "0"),
    ("--times", "t"),
    ("--weights", "w"),
    ("--task", "steady"),
    ("--mesh", "grid"),
    ("--periodic",),
    ("--name", "mine"),
    ("--preview", "p.png"),
]


@pytest.mark.parametrize("option", OFFICIAL, ids=lambda option: option[0])
def test_official_files_take_no_options_they_would_ignore(
    tmp_path: Path, option: tuple[str, ...]
) -> None:
    message = refused("darcy", "--from", tmp_path, "--out", tmp_path / "o", *option)
    assert f"{option[0]} is of no use here: the files of darcy are known" in message


def test_official_files_with_a_pairing_and_a_validation_split(tmp_path: Path) -> None:
    from scipy.io import savemat

    random = np.random.default_rng(0)
    field = random.random((12, 101, 31, 20, 4))
    savemat(tmp_path / "plas_N987_T20.mat", {"input": random.random((12, 101)), "output": field})
    common = ("plasticity", "--from", tmp_path)
    assert "did you mean released" in refused(
        *common, "--out", tmp_path / "o", "--pairing", "realeased"
    )
    result = run(*common, "--out", tmp_path / "o", "--pairing", "released", "--validation", "2")
    assert result.exit_code == 0, result.exception
    dataset = Dataset.open(tmp_path / "o")
    assert len(dataset.rows("validation")) == 2
    assert "plas_N987_T20.mat: 12 samples where 987 were published" in result.stderr
    assert run(*common, "--out", tmp_path / "p").exit_code == 0
    assert Dataset.open(tmp_path / "p").sha256 != dataset.sha256


def test_official_files_need_a_folder(tmp_path: Path) -> None:
    assert "--from DIR" in refused("darcy", "--out", tmp_path / "o")
    assert "are known" in refused("darcy", "--from", tmp_path, "--inputs", "a", "--out", tmp_path)
    assert "did you mean darcy" in refused("dracy", "--from", tmp_path, "--out", tmp_path / "o")
