"""`ono reproduce`, and `ono report` of its results, as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from ono.cli.app import main
from ono.experiments import eigenfunctions
from ono.experiments.budgets import BUDGETS
from ono.experiments.catalogue import NAMES, experiment
from ono.experiments.datasets import place_of
from ono.experiments.grid import Cell
from ono.experiments.ledger import Ledger

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def ono(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Run the command in this process, which has loaded torch already, in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        with mock.patch.object(sys, "argv", ["ono", *arguments]), pytest.raises(SystemExit) as end:
            main()
        return Done(int(end.value.code or 0), *capsys.readouterr())

    return run


def test_a_smoke_run_fills_a_table_and_is_not_repeated(
    ono: Callable[..., Done], tmp_path: Path
) -> None:
    arguments = ("reproduce", "eigenfunctions", "--budget", "smoke", "--seeds", "2")
    first = ono(*arguments)
    assert first.code == 0, first.err
    assert "8 complete, 0 done before, 0 stopped, 0 failed, 0 not begun" in first.out
    assert "0 complete, 8 done before" in ono(*arguments).out
    lines = Ledger(tmp_path / "results/ledger.jsonl").lines()
    angles = [line.values["span"] for line in lines if line.recipe.endswith("/white")]
    written = ono("report", "results")
    assert written.code == 0, written.err
    page = (tmp_path / "results/results.md").read_text()
    mean, spread = statistics.fmean(angles), statistics.stdev(angles)
    assert f"| white | {mean:.2f} ± {spread:.2f}° |" in page
    assert "**budget** smoke, 60 steps" in page
    assert "images/results-eigenfunctions-smoke-none.svg" in page
    assert (tmp_path / "results/images/results-eigenfunctions-smoke-none.svg").is_file()
    assert "<svg" in (tmp_path / "results/results.html").read_text()


def test_no_time_begins_nothing(ono: Callable[..., Done], tmp_path: Path) -> None:
    done = ono("reproduce", "blocks", "--minutes", "0", "--device", "cpu")
    assert done.code == 0, done.err
    assert "0 failed, 15 not begun" in done.out
    assert "run the same command again" in done.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reproduce", "mian"), "did you mean main?"),
        (("reproduce", "main", "--budget", "long"), "choose from paper, short, smoke"),
        (("reproduce", "main", "--shard", "3/2"), "got '3/2'"),
        (("reproduce", "main", "--device", "tpu"), "device must be"),
        (("reproduce", "main", "--only", "moon/*"), "no cell of main is called like 'moon/*'"),
        (("reproduce", "main", "--only", "moon/*", "--dry-run"), "called like 'moon/*'"),
        (("reproduce", "main", "--ledger", "."), "the ledger . is a directory"),
        (("report", "results"), "nothing to report at results: a run comes from `ono train`"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(
    ono: Callable[..., Done], arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = ono(*arguments)
    assert done.code == 2
    assert message in done.err
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_the_way_of_data_names_the_option(
    ono: Callable[..., Done], tmp_path: Path
) -> None:
    place = place_of(Cell("elasticity/ono"), BUDGETS["smoke"], tmp_path / "d2")
    place.mkdir(parents=True)
    (place / "notes.txt").write_text("mine")
    only = ("--only", "elasticity/ono", "--budget", "smoke", "--device", "cpu")
    done = ono("reproduce", "main", *only, "--data", "d2")
    assert done.code == 1, done.err
    said = "is not empty and not a dataset; choose another directory (in --data d2)"
    assert said in done.out
    assert (place / "notes.txt").read_text() == "mine"
    assert [file.name for file in place.iterdir()] == ["notes.txt"]


def test_a_dry_run_lists_the_cells(ono: Callable[..., Done]) -> None:
    done = ono("reproduce", "all", "--dry-run")
    assert done.code == 0, done.err
    for name in NAMES:
        assert f"{name}: " in done.out
    cells = sum(len(experiment(name).cells) for name in NAMES)
    assert len(done.out.splitlines()) == cells + len(NAMES)
    few = ono("reproduce", "all", "--dry-run", "--only", "*norm=bn")
    assert len(few.out.splitlines()) == 4 + len(NAMES)
    parts = [
        ono("reproduce", "main", "--dry-run", "--seeds", "2", "--shard", f"{i}/3").out
        for i in (1, 2, 3)
    ]
    listed = [line for part in parts for line in part.splitlines()[1:]]
    assert len(set(listed)) == len(listed) == 2 * len(experiment("main").cells)


def test_a_list_says_what_is_done_and_what_is_next(ono: Callable[..., Done]) -> None:
    only = ("eigenfunctions", "--budget", "smoke", "--only", "*/re*")
    begin = ono("reproduce", *only, "--list")
    assert begin.code == 0, begin.err
    assert re.match(r"- +~2 s  eigenfunctions/repeated, seed 0  \(eigen", begin.out)
    assert "0 of 1 complete; about 2 s left" in begin.out
    assert "estimated for one core of a CPU" in begin.out, "a smoke run is for a CPU"
    short = ono("reproduce", "main", "--list").out
    assert "estimated for an NVIDIA H200" in short
    assert re.search(r"~\d+\.\d min  darcy/ono, seed 0", short)
    assert "1 complete, 0 done before" in ono("reproduce", *only).out
    assert ono("reproduce", *only, "--list").out.startswith("complete")


def test_trainings_can_lie_elsewhere(ono: Callable[..., Done], tmp_path: Path) -> None:
    """And pictures lie beside the ledger, where they can be kept without the trainings."""
    arguments = ("super-resolution", "--only", "darcy/ono*loss=0", "--budget", "smoke")
    done = ono("reproduce", *arguments, "--device", "cpu", "--runs", "far/away")
    assert done.code == 0, done.out + done.err
    assert len(list((tmp_path / "far/away").iterdir())) == 1
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [
        "ledger.jsonl",
        "pictures",
    ]
    (picture,) = (tmp_path / "results/pictures").iterdir()
    assert picture.stat().st_size < 300_000
    page = tmp_path / "page.md"
    page.write_text("<!-- results: begin --><!-- results: end -->")
    assert ono("report", "results", "--docs", "page.md").code == 0
    assert "images/results-super-resolution-smoke-made-darcy-ono.svg" in page.read_text()


def test_ctrl_c_in_a_cell_that_is_no_training_is_told(
    ono: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("reproduce", "eigenfunctions", "--budget", "smoke")
    with monkeypatch.context() as patch:
        patch.setattr(
            eigenfunctions, "recover", lambda *_, **__: signal.raise_signal(signal.SIGINT)
        )
        done = ono(*arguments)
    assert done.code == 130
    assert "stopped with 3 of 4 cells not begun; the ledger is" in done.err
    assert ": stopped after 0 epochs" in done.out
    (line,) = Ledger(tmp_path / "results/ledger.jsonl").lines()
    assert line.status == "stopped"
    assert "4 complete, 0 done before" in ono(*arguments).out


@pytest.mark.slow
def test_everything_runs_in_a_smoke_budget(ono: Callable[..., Done], tmp_path: Path) -> None:
    done = ono("reproduce", "all", "--budget", "smoke", "--device", "cpu")
    assert done.code == 0, done.out + done.err
    assert ", 0 stopped, 0 failed, 0 not begun" in done.out
    lines = Ledger(tmp_path / "results/ledger.jsonl").lines()
    for line in lines:
        if line.experiment == "super-resolution":
            assert set(line.values) == {"test", "validation", "85"}
    (later,) = [x for x in lines if (x.experiment, x.recipe) == ("temporal", "ns2d/ono")]
    assert len(later.by_time) == 10
    assert later.values["seen"] <= max(later.by_time[:8])
    assert min(later.by_time[8:]) <= later.values["unseen"] <= max(later.by_time[8:])
    assert ono("report", "results").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_signal_leaves_a_ledger_of_stopped_cells(
    number: signal.Signals, code: int, jobs: str, tmp_path: Path
) -> None:
    """Two cells of thousands of epochs, stopped in their midst."""
    script = tmp_path / "long.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), jobs]
    process = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE)
    began = time.monotonic()
    while not list(tmp_path.glob("runs/*/metrics.jsonl")):
        assert time.monotonic() - began < 120, "no training began"
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    lines = Ledger(tmp_path / "ledger.jsonl").lines()
    assert lines
    assert {line.status for line in lines} == {"stopped"}


PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path

from ono.errors import Interrupted
from ono.experiments.budgets import BUDGETS
from ono.experiments.jobs import Settings
from ono.experiments.grid import Cell, Experiment, Place, Table
from ono.experiments.ledger import Ledger
from ono.experiments.runner import reproduce

if __name__ == "__main__":
    cells = [Cell("elasticity/deeponet", (f"model.width={width}",)) for width in (16, 32)]
    places = {("deeponet", str(n)): Place((cell,)) for n, cell in enumerate(cells)}
    experiment = Experiment("long", "", (Table("long", "", places),))
    budget = replace(BUDGETS["smoke"], epochs=100000)
    settings = Settings(budget, Path("data"), Path("runs"), "cpu")
    try:
        reproduce([experiment], settings, Ledger(Path("ledger.jsonl")), jobs=int(sys.argv[1]))
    except Interrupted as error:
        sys.exit(128 + error.signal_number)
"""
