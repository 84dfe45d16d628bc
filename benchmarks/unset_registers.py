"""Find uniform registers that a compiled kernel reads before anything has written them.

ptxas 12.8 makes such code of a matrix product that reads memory where another one did in front of a
loop: part of its address is moved there as well, and added to nothing. The tensor cores then read
anything, or what may not be read. No test on a CPU sees that, but it stands in the code.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import triton

_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z][A-Za-z0-9_.]*)\s*(?P<operands>.*?)\s*;"
)
_REGISTER = re.compile(r"\bUR(\d+)\b")
_DESCRIBED = re.compile(r"\bg?desc\[UR(\d+)\]")
_WRITING = re.compile(r"^(U(?!TMA|BLK|CGA|SET)[A-Z0-9]+|LDCU|S2UR|R2UR|VOTEU|REDUX)$")


def unset_registers(cubin: bytes) -> list[str]:
    """Return the instructions of a kernel that read what nothing before them has written."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([tool, "-c", file], capture_output=True, text=True, check=True)
    return unset_in(done.stdout)


def unset_in(listing: str) -> list[str]:
    """Return them for a disassembled kernel; what a loop reads is written ahead of it, too."""
    found: list[str] = []
    known: set[int] = set()
    for line in listing.splitlines():
        if match := _INSTRUCTION.match(line):
            written, read = _registers(match["name"], match["operands"])
            if not known.issuperset(read):
                found.append(f"{match['name']} {match['operands']}")
            known.update(written, read)
    return found


def _registers(name: str, operands: str) -> tuple[set[int], set[int]]:
    """Return which registers an instruction writes and reads."""
    kind, *changes = name.split(".")
    written: set[int] = set()
    first = _REGISTER.match(operands)
    if first and _WRITING.match(kind):
        count = 4 if "128" in changes else 2 if {"64", "WIDE"} & set(changes) else 1
        written.update(range(int(first[1]), int(first[1]) + count))
        operands = operands[first.end() :]
    read = set(_of_descriptors(kind, operands))
    width = 2 if kind.startswith("U") and "64" in changes else 1
    for match in _REGISTER.finditer(_DESCRIBED.sub("", operands)):
        read.update(range(int(match[1]), int(match[1]) + width))
    return written, read


def _of_descriptors(kind: str, operands: str) -> Iterator[int]:
    """Yield the registers of addresses: HGMMA has those of both factors side by side."""
    for match in _DESCRIBED.finditer(operands):
        first = int(match[1])
        if kind != "HGMMA":
            yield from (first, first + 1)
        elif len(re.findall(r"\bR\d+", operands[: match.start()])) > 1:
            yield from (first + 2, first + 3)  # the other factor is in registers of its own
        else:
            yield from range(first, first + 4)
