"""What a compiler makes of the kernels for a GPU that need not be here."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="needs Triton")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def unset_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found: Callable[[str], list[str]] = importlib.import_module("unset_registers").unset_in
    return found


def listing(*instructions: str) -> str:
    """Return instructions as a disassembler prints them."""
    lines = [
        f"        /*{16 * i:04x}*/                   {x} ;" for i, x in enumerate(instructions)
    ]
    return "\n".join(["        .text.kernel:", *lines])


def test_registers_that_nothing_has_written_are_found(
    unset_in: Callable[[str], list[str]],
) -> None:
    instructions = [
        "UMOV UR54, UR20",
        "UIADD3 UR58, UP1, UR58, 0x20, URZ",
        "HGMMA.64x16x16.F32.BF16 R24, R48, gdesc[UR56].tnspB, RZ, !UPT",
        "LDG.E.128 R8, desc[UR12][R14.64]",
    ]
    assert unset_in(listing(*instructions)) == instructions


def test_those_that_are_written_are_not(unset_in: Callable[[str], list[str]]) -> None:
    code = listing(
        "ULDC.64 UR12, c[0x0][0x208]",
        "S2UR UR20, SR_CTAID.X",
        "UIMAD.WIDE.U32 UR4, UR20, 0x1000, URZ",
        "@P0 UIADD3.64 UR6, UR4, 0x20, URZ",
        "R2UR UR8, R3",
        "R2UR.FILL UR9, R4",
        "HGMMA.64x16x16.F32.BF16 R24, R48, gdesc[UR4].tnspB, RZ, !UPT",
        "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR4], R24",
        "LDG.E.128 R8, desc[UR12][R14.64]",
        "STS.64 [R4+UR8], R24",
    )
    assert unset_in(code) == []


def test_products_between_landmarks_read_what_was_written() -> None:
    script = [sys.executable, str(BENCHMARKS / "other_gpus.py"), "9.0"]
    asked = ["--precisions", "tf32", "fp32", "--only", "told*"]
    compiling = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run([*script, *asked], capture_output=True, text=True, env=compiling)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["precision"] for line in lines] == ["tf32", "fp32"]
    for line in lines:
        assert line["kernels"] > 0
        assert line["reading unset registers"] == 0
