"""`ono bench` refuses before it measures, and says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ono.cli.app import app
from ono.errors import InputError


def ono(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments, catch_exceptions=False).output


@pytest.mark.parametrize("verb", ["speed", "inference"])
def test_mistakes_are_told_before_anything_is_measured(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ono.experiments.measurements.stand_in", None)  # not called
    for wrong, told in (
        (["darcy/ono-quick", "moon/ono"], "no benchmark is called 'moon'"),
        (["darcy/ono-quick", "--lines", str(tmp_path / "no" / "l")], "a directory that exists"),
        (["darcy/ono-quick", "--lines", str(tmp_path)], "cannot write to"),
    ):
        with pytest.raises(InputError, match=told):
            ono("bench", verb, *wrong)
    with pytest.raises(InputError, match="did you mean darcy/ono-quick"):
        ono("bench", "inference", "darcy/ono-quick", "darcy/ono-quik")


def test_a_recording_on_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ono.experiments.measurements.stand_in", None)  # not called
    with pytest.raises(InputError, match="--recorded needs a GPU"):
        ono("bench", "inference", "darcy/ono-quick", "--recorded", "--device", "cpu")


def test_a_batch_that_was_asked_for_is_not_left_out_without_a_word() -> None:
    asked = ("--points", "64", "--batch", "4", "--seconds", "0.1", "--device", "cpu")
    told = ono("bench", "inference", "darcy/ono-quick", *asked)
    assert "4 samples of 64 points are left out" in told
    assert "--points 256" in told
