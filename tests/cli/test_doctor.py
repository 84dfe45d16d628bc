"""What `ono doctor` finds."""

from __future__ import annotations

import importlib.util

import pytest

from ono.cli.doctor import doctor
from ono.train.diagnosis import Finding, diagnose


@pytest.mark.parametrize(("module", "extra"), [("tensorboard", "track"), ("meshio", "mesh")])
def test_a_missing_extra_is_a_note_with_the_way_to_it(
    module: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == module else find(name)
    )
    missing = Finding(module, f'not installed; `pip install "ono[{extra}]"`', "note")
    assert [found for found in diagnose() if found.what == module] == [missing]
    doctor()
    assert f'pip install "ono[{extra}]"' in capsys.readouterr().out
