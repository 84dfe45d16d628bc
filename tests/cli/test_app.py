"""The command as a user runs it: what it answers, how fast, and with which exit code."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tiny
import torch
import yaml

import ono as package
from ono.cli.app import main
from ono.data.info import Array
from ono.evaluate.operator import Operator
from ono.evaluate.predict import predict
from ono.train.recipe import Recipe

ONO = Path(sysconfig.get_path("scripts")) / "ono"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "120"}


def process(
    *arguments: str | Path, before: Callable[[], None] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the installed command in a process of its own."""
    return subprocess.run(
        [ONO, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | environment,
        timeout=120,
        check=False,
        preexec_fn=before,
    )


def ono(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which has loaded torch already."""
    words = ["ono", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", words),
        mock.patch.dict(os.environ, {"COLUMNS": "120", "NO_COLOR": "1"}),
        pytest.raises(SystemExit) as end,
    ):
        main()
    code = end.value.code
    return subprocess.CompletedProcess(words, int(code or 0), out.getvalue(), err.getvalue())


def refused(*arguments: str | Path, code: int = 2, before: Callable[[], None] | None = None) -> str:
    """Run a command that must be refused; return its message."""
    done = process(*arguments, before=before) if before else ono(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: "), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def seconds(*arguments: str | Path, repeats: int) -> float:
    """Return the shortest CPU time a command took: other processes may keep it waiting."""
    times = []
    for _ in range(repeats):
        before = os.times()
        process(*arguments)
        after = os.times()
        times.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    return min(times)


class Case:
    """A dataset, a recipe for it, a finished run, and its inputs as files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.run = folder, folder / "data", folder / "run"
        self.recipe = folder / "recipe.yaml"
        tiny.dataset(self.data)
        self.recipe.write_text(yaml.safe_dump(tiny.content(self.data)))
        self.trained = process("train", self.recipe, "--out", self.run)
        self.inputs = self.store("inputs", self.field())

    def field(self) -> Array:
        return tiny.fields(seed=4)[1].reshape(-1, tiny.SIDE, tiny.SIDE)[:5]

    def store(self, name: str, array: Array) -> Path:
        file = self.folder / f"{name}.npy"
        np.save(file, array)
        return file


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("app"))


def test_help_is_quick_and_names_the_verbs() -> None:
    text = process("--help").stdout
    for verb in ("data", "train", "resume", "eval", "predict", "report", "doctor"):
        assert verb in text
    assert seconds("--help", repeats=5) < 0.3


def test_version() -> None:
    assert process("--version").stdout.strip() == package.__version__


def test_an_unknown_verb_is_refused() -> None:
    done = ono("tarin")
    assert done.returncode == 2
    assert "tarin" in done.stderr
    assert "Traceback" not in done.stderr


def test_training_prints_epochs_and_the_result(case: Case) -> None:
    assert case.trained.returncode == 0, case.trained.stderr
    lines = case.trained.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    result = json.loads((case.run / "result.json").read_text())
    assert case.trained.stdout.startswith(f"test error {result['test']:.4f} (validation ")
    assert str(case.run) in case.trained.stdout


def test_a_dry_run_prints_the_resolved_recipe_and_writes_nothing(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ono("train", case.recipe, "model.width=32", "--set", "seed=5", "--dry-run")
    assert done.returncode == 0
    expected = Recipe.load(case.recipe, ["model.width=32", "seed=5"]).resolved()
    assert yaml.safe_load(done.stdout) == expected
    assert list(tmp_path.iterdir()) == []


def test_the_run_directory_has_a_name_by_itself(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ono("train", case.recipe, "train.epochs=1", "seed=3", "name=a/b")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "a-b-3" / "result.json").is_file()


CONFIG_ERRORS: dict[str, tuple[list[str], list[str]]] = {
    "unknown key": (["model.widht=64"], ["model.widht", "64", "did you mean model.width?"]),
    "wrong type": (["train.epochs=many"], ["train.epochs", "'many'", "integer"]),
    "wrong choice": (["optimiser.schedule=cosin"], ["'cosin'", "did you mean cosine?"]),
    "negative": (["train.batch=-1"], ["train.batch is -1", "greater than 0"]),
    "not an override": (["epochs"], ["'epochs'", "key=value", "train.epochs=10"]),
    "missing data": (["data.path=nowhere"], ["no dataset at nowhere", "data.path of the recipe"]),
}


@pytest.mark.parametrize("name", CONFIG_ERRORS)
def test_a_mistake_in_a_recipe_is_one_clear_message(case: Case, tmp_path: Path, name: str) -> None:
    changes, parts = CONFIG_ERRORS[name]
    message = refused("train", case.recipe, *changes, "--out", tmp_path / "run")
    for part in parts:
        assert part in message
    assert len(message.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_missing_recipe_names_the_nearest() -> None:
    assert "'darcy/onno'; did you mean darcy/ono?" in refused("train", "darcy/onno")
    assert "no recipe file none.yaml" in refused("train", "none.yaml")


@pytest.mark.parametrize("change", ["model.widht=64", "data.path=nowhere"])
def test_a_mistake_is_answered_within_a_second(case: Case, change: str) -> None:
    assert seconds("train", case.recipe, change, repeats=3) < 1


def test_a_lack_of_memory_is_told_without_a_traceback(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        np.empty(1 << 58)

    monkeypatch.setattr("ono.train.evaluations.Evaluator", full)
    message = refused("eval", case.run, code=1)
    assert "memory ran out (Unable to allocate 2.00 EiB for an array" in message
    assert "a run that was begun goes on with `ono resume`" in message


def test_a_mistake_is_found_without_torch(case: Case) -> None:
    code = f"""
import sys
from ono.cli.app import main
for change in ("model.widht=64", "data.path=nowhere"):
    sys.argv = ["ono", "train", {str(case.recipe)!r}, change]
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, end.code
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def spoil(folder: Path, kind: str) -> None:
    """Write a dataset that cannot be trained on."""
    _, a, u = tiny.fields()
    if kind == "nan":
        a[2, 3] = np.nan
        tiny.dataset(folder, inputs=a)
    elif kind == "zero":
        u[[4, 9]] = 0
        tiny.dataset(folder, outputs=u)
    elif kind == "constant":
        tiny.dataset(folder, outputs=np.full_like(u, 2))
    elif kind == "no validation":
        tiny.dataset(folder, splits={"train": (0, 16), "test": (16, 20)})
    else:
        tiny.dataset(folder)
        file = folder / "dataset.json"
        content = json.loads(file.read_text())
        if kind == "empty split":
            content["splits"]["test"] = [20, 20]
        elif kind == "wrong rank":
            np.save(folder / "inputs.npy", a[..., 0])
            written = folder / "inputs.npy"
            content["files"]["inputs"] |= {"shape": [20, 81], "bytes": written.stat().st_size}
        elif kind == "pickle":
            np.save(folder / "inputs.npy", np.array([{}], dtype=object), allow_pickle=True)
            content["files"]["inputs"]["bytes"] = (folder / "inputs.npy").stat().st_size
        file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("nan", ["1 train samples have NaN or infinite values (rows 2)", "ono data check"]),
        ("zero", ["2 train samples have an output of zero (rows 4, 9)"]),
        ("constant", ["output potential has one value in all 12 train samples"]),
        ("no validation", ["no split 'validation'", "choose from test, train"]),
        ("empty split", ["split test is [20, 20) of 20 samples"]),
        ("wrong rank", ["inputs has shape [20, 81], expected [20, 81, 1]"]),
        ("pickle", ["inputs.npy cannot be used", "pickled objects are never read"]),
    ],
)
def test_bad_data_is_refused_before_anything_is_written(
    case: Case, tmp_path: Path, kind: str, parts: list[str]
) -> None:
    spoil(tmp_path / "data", kind)
    change = f"data.path={tmp_path / 'data'}"
    message = refused("train", case.recipe, change, "--out", tmp_path / "run")
    for part in [str(tmp_path / "data"), *parts]:
        assert part in message
    assert len(message.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_device_that_is_not_there_is_refused(case: Case, tmp_path: Path, device: str) -> None:
    message = refused("train", case.recipe, f"train.device={device}", "--out", tmp_path / "run")
    assert f"device {device} was asked for, but torch sees 0 CUDA devices" in message
    assert "use cpu" in message
    assert not (tmp_path / "run").exists()


def test_a_resolution_that_does_not_exist_is_refused(case: Case, tmp_path: Path) -> None:
    message = refused("train", case.recipe, "data.resolution=7", "--out", tmp_path / "run")
    assert "no resolution 7; its grid 9x9 contains 9, 5, 3" in message
    assert not (tmp_path / "run").exists()


def test_a_directory_that_holds_a_run_is_refused(case: Case) -> None:
    message = refused("train", case.recipe, "--out", case.run)
    assert f"{case.run} already holds a run; continue it with `ono resume {case.run}`" in message


def test_an_output_that_is_a_file_is_refused(case: Case, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        message = refused("train", case.recipe, "--out", place)
        assert f"cannot write to the run directory {place}" in message
        assert "--out" in message
    assert (tmp_path / "file").read_text() == "mine"


def give_up_root() -> None:
    """Let file permissions bind this process and what it starts, even for the superuser."""
    drop, may_override = 24, 1
    ctypes.CDLL(None).prctl(drop, may_override, 0, 0, 0)


def test_a_read_only_place_is_refused(case: Case, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    where = closed / "run"
    message = refused("train", case.recipe, "--out", where, before=give_up_root)
    assert f"cannot write to the run directory {where}: Permission denied" in message
    message = refused(
        "predict",
        case.run,
        *("--inputs", case.inputs, "--out", closed / "p.npy"),
        before=give_up_root,
    )
    assert f"cannot write to {closed / 'p.npy'}: Permission denied" in message
    assert list(closed.iterdir()) == []


def small_files() -> None:
    """Let no file grow past 8 KiB, as a full disk would."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def test_a_disk_that_fills_while_training_is_told_and_nothing_half_written_stays(
    case: Case, tmp_path: Path
) -> None:
    done = process("train", case.recipe, "--out", tmp_path / "run", before=small_files)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert len(warnings) == 3
    assert "checkpoint at step 3 could not be written" in warnings[0]
    assert "File too large" in warnings[0]
    assert lines[-1].startswith("error: checkpoint at step 9 could not be written")
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    assert not (tmp_path / "run" / "result.json").exists()
    again = ono("resume", tmp_path / "run")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (
        case.run / "metrics.jsonl"
    ).read_bytes()


def no_files() -> None:
    """Let no file grow past what Python tries temporary directories with."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))


def test_a_full_disk_is_told_by_the_name_of_the_file_and_no_run_is_begun(
    case: Case, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    message = refused("train", case.recipe, "--out", run, before=no_files, code=1)
    assert f"{run / 'environment.json'} was not written: File too large; make room" in message
    assert "--out" in message
    assert not run.exists()


@pytest.mark.parametrize("verb", ["make", "import"])
@pytest.mark.parametrize("limit", [4, 8192])
def test_a_full_disk_leaves_no_half_made_dataset(
    case: Case, tmp_path: Path, verb: str, limit: int
) -> None:
    out = tmp_path / "data"
    words: tuple[str | Path, ...] = ("make", "elasticity", "--samples", "6")
    if verb == "import":
        many = case.store("many", np.random.default_rng(0).random((300, 9, 9)))
        words = ("import", "--inputs", many, "--outputs", many, "--splits", "200/50/50")

    def before() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    message = refused("data", *words, "--out", out, before=before, code=1)
    named = rf"writing to {out}/[a-z]+\.(json|npy) failed: File too large; make room or choose"
    assert re.search(named, message)
    assert list(tmp_path.iterdir()) == [], "the next try finds a free place"


def test_a_disk_that_fills_while_predicting_leaves_no_file(case: Case, tmp_path: Path) -> None:
    many = case.store("many", np.repeat(case.field(), 20, 0))
    message = refused(
        "predict",
        case.run,
        *("--inputs", many, "--out", tmp_path / "p.npy"),
        before=small_files,
        code=1,
    )
    assert "File too large" in message
    assert list(tmp_path.iterdir()) == []


def test_an_exploding_run_fails_with_one_message(case: Case, tmp_path: Path) -> None:
    change = ["optimiser.learning_rate=1e30", "optimiser.schedule=constant"]
    done = ono("train", case.recipe, *change, "--out", tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for part in ("not finite in epoch 1", "dataset rows [", "last good checkpoint: none"):
        assert part in done.stderr


def test_resume_says_what_it_lacks(case: Case, tmp_path: Path) -> None:
    assert f"no run at {tmp_path}" in refused("resume", tmp_path)
    assert f"{case.run} is finished" in refused("resume", case.run)
    nowhere = tmp_path / "step-000000001"
    (tmp_path / "recipe.yaml").write_bytes((case.run / "recipe.yaml").read_bytes())
    for damaged in ("{", "{}", "[]"):
        (tmp_path / "result.json").write_text(damaged)
        message = refused("eval", tmp_path)
        assert "result.json cannot be read" in message
        assert f"delete it, and `ono resume {tmp_path}` writes it again" in message
    message = refused("resume", case.run, "--from", nowhere)
    assert f"{nowhere} has no manifest.json: not a complete checkpoint" in message


def predicted(case: Case, out: Path, *arguments: str | Path) -> Array:
    done = ono("predict", case.run, "--inputs", case.inputs, "--out", out, *arguments)
    assert done.returncode == 0, done.stderr
    assert f"wrote {out}: potential [V], shape [" in done.stdout
    values: Array = np.load(out)
    return values


def test_predict_writes_what_the_library_computes(case: Case, tmp_path: Path) -> None:
    expected = predict(Operator.load(case.run), case.field()).values
    got = predicted(case, tmp_path / "deep" / "p.npy")
    assert got.shape == (5, 9, 9)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_predict_at_points_does_not_depend_on_the_chunk(case: Case, tmp_path: Path) -> None:
    points = np.random.default_rng(1).random((37, 2))
    points[3] = [1.5, 0.5]
    points[8] = [0.5, -2.0]
    query = case.store("query", points)
    whole = ono(
        "predict",
        case.run,
        *("--inputs", case.inputs, "--out", tmp_path / "w.npy", "--query", query),
    )
    assert whole.returncode == 0
    assert "warning: 2 points lie outside the box of the training data" in whole.stderr
    parts = predicted(case, tmp_path / "c.npy", "--query", query, "--chunk", "5")
    assert parts.shape == (5, 37, 1)
    np.testing.assert_allclose(parts, np.load(tmp_path / "w.npy"), rtol=0, atol=1e-6)


def bad_inputs(case: Case) -> dict[str, tuple[Array, list[str]]]:
    spoilt = case.field()
    spoilt[[1, 3], 2] = np.nan
    return {
        "rank": (case.field()[0], ["must be [samples x y channels]", "(source)", "got [9, 9]"]),
        "channels": (np.zeros((2, 9, 9, 3)), ["with 1 channels", "got [2, 9, 9, 3]"]),
        "not a square": (np.zeros((2, 80, 1)), ["got [2, 80, 1]"]),
        "nan": (spoilt, ["NaN or infinite values in samples [1, 3]"]),
        "empty": (np.zeros((0, 9, 9)), ["inputs are empty, got [0, 9, 9]"]),
        "text": (np.array([["a"]]), ["holds text; only real numbers are read"]),
    }


@pytest.mark.parametrize("kind", ["rank", "channels", "not a square", "nan", "empty", "text"])
def test_predict_refuses_bad_inputs(case: Case, tmp_path: Path, kind: str) -> None:
    array, parts = bad_inputs(case)[kind]
    file, out = case.store("bad", array), tmp_path / "p.npy"
    message = refused("predict", case.run, "--inputs", file, "--out", out)
    for part in parts:
        assert part in message
    assert not out.exists()


class Canary:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_predict_never_unpickles(case: Case, tmp_path: Path, suffix: str) -> None:
    canary, file = tmp_path / "canary", tmp_path / f"bad.{suffix}"
    array = np.array([Canary(canary)], dtype=object)
    with file.open("wb") as handle:
        if suffix == "npy":
            np.save(handle, array, allow_pickle=True)
        else:
            np.savez(handle, array)
    for option in ("--inputs", "--query", "--coords"):
        other = () if option == "--inputs" else ("--inputs", case.inputs)
        message = refused("predict", case.run, option, file, *other, "--out", tmp_path / "p.npy")
        assert f"{file} " in message
    assert not canary.exists()
    assert not (tmp_path / "p.npy").exists()


def test_predict_refuses_what_is_not_there(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "p.npy"
    assert "no file none.npy" in refused("predict", case.run, "--inputs", "none.npy", "--out", out)
    message = refused("predict", tmp_path, "--inputs", case.inputs, "--out", out)
    assert f"no trained operator at {tmp_path}" in message
    nan = case.store("nan", np.array([[0.5, np.nan]]))
    arguments = ("--inputs", case.inputs, "--out", out, "--query")
    message = refused("predict", case.run, *arguments, nan)
    assert "query points hold NaN or infinite values in rows [0]" in message
    flat = case.store("flat", np.zeros(4))
    assert "must be [points 2], got [4]" in refused("predict", case.run, *arguments, flat)


def test_eval_adds_each_kind_of_error_to_the_run(case: Case) -> None:
    query = case.store("places", np.random.default_rng(2).random((11, 2)))
    done = ono("eval", case.run, "-r", "9", "-r", "5", "--query", query, "--scattered", "64")
    assert done.returncode == 0, done.stderr
    for text in ("9x9", "5x5", "scattered queries", "test error"):
        assert text in done.stdout
    rows = json.loads((case.run / "evaluations.json").read_text())
    assert [(row["kind"], row["points"]) for row in rows] == [
        ("grid", 25),
        ("grid", 81),
        ("query", 11),
        ("query", 64),
    ]
    result = json.loads((case.run / "result.json").read_text())
    assert rows[1]["mean"] == pytest.approx(result["test"], rel=1e-5)
    middle = np.median(list(result["test_errors"].values()))
    assert rows[1]["median"] == pytest.approx(middle, rel=1e-5)
    again = ono("eval", case.run, "--resolution", "5", "--split", "validation")
    assert again.returncode == 0
    rows = json.loads((case.run / "evaluations.json").read_text())
    assert len(rows) == 5
    same = ono("eval", case.run, "--resolution", "5", "--split", "validation")
    assert same.returncode == 0
    assert len(json.loads((case.run / "evaluations.json").read_text())) == 5
    others = case.store("others", np.random.default_rng(3).random((11, 2)))
    assert f"queries of {others}" in ono("eval", case.run, "--query", others).stdout
    rows = json.loads((case.run / "evaluations.json").read_text())
    assert [row["source"] for row in rows if row["points"] == 11] == [str(query), str(others)]


def test_help_of_points_is_whole() -> None:
    told = " ".join(ono("eval", "--help").stdout.replace("│", " ").split())
    assert "one a row, FILE[:KEY]." in told
    told = " ".join(ono("data", "import", "--help").stdout.replace("│", " ").split())
    assert "Repeat for one list a coordinate." in told


def test_eval_refuses_what_does_not_exist(case: Case, tmp_path: Path) -> None:
    message = refused("eval", case.run, "--resolution", "10")
    assert "no resolution 10; its grid 9x9 contains 9, 5, 3" in message
    kept = case.run / "evaluations.json"
    before = kept.read_bytes() if kept.exists() else None
    refused("eval", case.run, "--resolution", "3", "--resolution", "10")
    assert (kept.read_bytes() if kept.exists() else None) == before, "refused before work"
    message = refused("eval", case.run, "--split", "tets")
    assert "no split 'tets'; did you mean test?" in message
    assert f"no run at {tmp_path}" in refused("eval", tmp_path)
    wrong = case.store("wrong", np.zeros((4, 3)))
    assert "must be [points 2], got [4, 3]" in refused("eval", case.run, "--query", wrong)


def test_report_writes_one_file(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = ono("report", case.run, "--out", out)
    assert done.returncode == 0, done.stderr
    assert f"report: {out}" in done.stdout
    text = out.read_text()
    assert text.startswith("<!")
    assert "potential" in text
    assert "nothing to report at" in refused("report", tmp_path / "none")
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    assert f"{kept} exists and is no .html file" in refused("report", case.run, "--out", kept)
    assert kept.read_text() == "{}"
    assert "--docs is for results" in refused("report", case.run, "--docs", tmp_path / "page.md")
    other = tmp_path / "page.html"
    other.write_text("<html></html>")
    assert "holds no results" in refused("report", other)


def test_verbs_take_the_place_that_data_was_moved_to(case: Case, tmp_path: Path) -> None:
    moved = shutil.copytree(case.data, tmp_path / "moved")
    assert ono("eval", case.run, "--data", moved).returncode == 0
    page = tmp_path / "page.html"
    assert ono("report", case.run, "--data", moved, "--out", page).returncode == 0
    assert "Without pictures" not in page.read_text()
    assert f"{case.run} is finished" in refused("resume", case.run, "--data", moved)
    for verb in ("eval", "report", "resume"):
        assert "no dataset at nowhere" in refused(verb, case.run, "--data", "nowhere")
    (tmp_path / "ledger.jsonl").touch()
    assert "--data is for a run" in refused("report", tmp_path, "--data", moved)


def test_a_damaged_best_checkpoint_is_not_used(case: Case, tmp_path: Path) -> None:
    shutil.copytree(case.run, tmp_path / "run")
    pointer = json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())
    file = tmp_path / "run" / "checkpoints" / pointer["checkpoint"] / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 4
    file.write_bytes(content)
    arguments = ("--inputs", case.inputs, "--out", tmp_path / "p.npy")
    assert f"{file} is damaged: expected sha256" in refused("predict", tmp_path / "run", *arguments)


def test_paths_may_have_spaces_and_other_letters(case: Case, tmp_path: Path) -> None:
    run = tmp_path / "my run äλ"
    done = process("train", case.recipe, "train.epochs=1", "--out", run, HOME="/nonexistent")
    assert done.returncode == 0, done.stderr
    assert ono("eval", run).returncode == 0


def test_doctor_finds_the_machine_well() -> None:
    done = ono("doctor")
    assert done.returncode == 0, done.stdout
    assert "whitening" in done.stdout
