"""A run whose dataset was moved: it is found again by its new place, and must be the same data."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import tiny

from ono.errors import CheckpointError, DataError, Interrupted
from ono.report.html import write_report
from ono.train.evaluations import Evaluator
from ono.train.loop import fit, resume
from ono.train.recipe import Recipe
from ono.train.run import Run
from ono.train.state import Event


def stop(event: Event) -> None:
    if event.kind == "step" and event.state.step == 4:
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run stopped within its second epoch, begun from a directory where `data` was seen."""
    monkeypatch.chdir(tmp_path)
    tiny.dataset(Path("data"))
    with pytest.raises(Interrupted):
        fit(tiny.recipe(Path("data")), tmp_path / "run", [stop])
    return tmp_path / "run"


def moved(run: Path) -> Path:
    place = run.parent / "far off" / "away"
    place.parent.mkdir()
    Path("data").rename(place)
    return place


def test_a_run_goes_on_exactly_where_its_data_was_moved(stopped: Path, tmp_path: Path) -> None:
    whole = fit(tiny.recipe(Path("data")), tmp_path / "whole")
    before, place = (stopped / "recipe.yaml").read_bytes(), moved(stopped)
    with pytest.raises(DataError, match=rf"no dataset at data, seen from {tmp_path},.*--data"):
        resume(stopped)
    result = resume(stopped, data=place)
    assert (result.test, result.validation) == (whole.test, whole.validation)
    for name in ("metrics.jsonl", "recipe.yaml"):
        assert (stopped / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (stopped / "recipe.yaml").read_bytes() == before
    assert str(place) in (stopped / "events.jsonl").read_text()


def test_a_run_stopped_again_says_the_place_again(stopped: Path) -> None:
    place = moved(stopped)

    def again(event: Event) -> None:
        if event.kind == "step" and event.state.step == 7:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match=f"`ono resume {stopped} --data '{place}'`"):
        resume(stopped, [again], data=place)


def test_other_data_is_refused(stopped: Path, tmp_path: Path) -> None:
    tiny.dataset(tmp_path / "other", seed=1)
    with pytest.raises(CheckpointError, match=r"other data than .*other now holds"):
        resume(stopped, data=tmp_path / "other")
    resume(stopped)
    with pytest.raises(CheckpointError, match=r"other data than .*other now holds.*--data"):
        Evaluator(stopped, device="cpu", data=tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"other data than .*other now holds"):
        write_report(stopped, data=tmp_path / "other")
    with pytest.raises(DataError, match="no dataset at none"):
        write_report(stopped, data=Path("none"))
    assert not (stopped / "report.html").exists()


def test_without_a_checkpoint_nothing_says_that_it_is_the_same_data(stopped: Path) -> None:
    place = moved(stopped)
    shutil.rmtree(stopped / "checkpoints")
    with pytest.raises(CheckpointError, match=f"ono train .*recipe.yaml 'data.path={place}'"):
        resume(stopped, data=place)
    assert Recipe.load(stopped / "recipe.yaml", [f"data.path={place}"]).data.path == str(place)


def test_evaluations_and_reports_find_moved_data(stopped: Path) -> None:
    resume(stopped)
    place, result = moved(stopped), Run(stopped).result()
    assert result is not None
    for try_it in (lambda: Evaluator(stopped, device="cpu"), lambda: resume(stopped)):
        with pytest.raises(DataError, match="say where it is with --data"):
            try_it()
    row = Evaluator(stopped, device="cpu", data=place).on_grid(None)
    assert row.mean == pytest.approx(result["test"], rel=1e-5)
    assert "say where it is with --data" in write_report(stopped).read_text()
    assert "Without pictures" not in write_report(stopped, data=place).read_text()


def test_an_unfinished_dataset_is_still_called_that(stopped: Path) -> None:
    (Path("data") / "dataset.json").unlink()
    (Path("data") / "making.json").write_text(
        '{"maker": "m", "size": "s", "samples": 2, "seed": 0}'
    )
    with pytest.raises(DataError, match="is not finished; to continue run"):
        resume(stopped)
