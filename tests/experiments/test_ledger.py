from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from ono.errors import InputError
from ono.experiments.ledger import Ledger, Line, latest


def line(**changed: Any) -> Line:
    known: dict[str, Any] = {
        "experiment": "main",
        "recipe": "darcy/ono",
        "recipe_sha256": "a",
        "data_sha256": "b",
        "data": "made",
        "seed": 0,
        "budget": "short",
        "status": "complete",
    }
    return Line(**(known | changed))


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "results" / "ledger.jsonl")
    assert ledger.lines() == []
    lines = [line(seed=seed, values={"test": 0.1 / 3}) for seed in range(3)]
    for one in lines:
        ledger.append(one)
    assert ledger.lines() == lines
    assert ledger.path.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_line_cut_short_by_a_crash_costs_itself_only(tmp_path: Path, cut: int) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(line(seed=0))
    ledger.append(line(seed=1))
    ledger.path.write_bytes(ledger.path.read_bytes()[:-cut])
    ledger.append(line(seed=2))
    whole = cut == 1  # only its end of line was lost
    assert [one.seed for one in ledger.lines()] == ([0, 1, 2] if whole else [0, 2])


def test_a_line_that_is_no_result_is_refused_by_number(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(line())
    with ledger.path.open("a") as file:
        file.write(json.dumps({"experiment": "main"}) + "\n")
    with pytest.raises(InputError, match=r"line 2 of .*--ledger"):
        ledger.lines()


def test_a_place_for_no_line_is_refused_before_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "new" / "results" / "ledger.jsonl")
    ledger.refuse_unwritable()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"is no place for it; choose another with --ledger"):
        Ledger(tmp_path).refuse_unwritable()
    with pytest.raises(InputError, match=r"is a directory; give a file with --ledger"):
        Ledger(tmp_path).lines()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match=r"is no place for it; choose another with --ledger"):
        Ledger(file / "ledger.jsonl").refuse_unwritable()
    monkeypatch.setattr("os.access", lambda path, mode: path != file)
    Ledger(tmp_path / "other").refuse_unwritable()
    with pytest.raises(InputError, match=r"file is read-only; choose another with --ledger"):
        Ledger(file).refuse_unwritable()


def _add(path: Path, seed: int) -> None:
    for count in range(20):
        Ledger(path).append(line(seed=100 * seed + count, reason="x" * 5000))


def test_processes_may_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add, args=(path, seed)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len({one.seed for one in Ledger(path).lines()}) == 60


def test_a_complete_line_holds_whatever_comes_after() -> None:
    done, late = line(), line(status="stopped")
    assert latest([late, done, late]) == {done.key: done}
    again = line(values={"test": 1.0})
    assert latest([done, again]) == {done.key: again}
    assert latest([line(status="failed"), late]) == {late.key: late}
