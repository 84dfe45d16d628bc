"""Choose where to compute, and how exactly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ono.errors import InputError


def choose_device(name: str) -> str:
    """Return the device a user names; "auto" takes a GPU if there is one.

    >>> choose_device("cpu")
    'cpu'
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise InputError(f"device must be auto, cpu, cuda or cuda:n, got {name!r}")
    if name == "cpu":
        return name
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if count else "cpu"
    if int(name.partition(":")[2] or 0) >= count:
        raise InputError(
            f"device {name} was asked for, but torch sees {count} CUDA devices here; use cpu, or "
            "run `ono doctor`"
        )
    return name


def describe_device(name: str) -> str:
    """Name a device for people."""
    import torch

    if name.startswith("cuda"):
        return torch.cuda.get_device_name(name)
    return f"cpu, {torch.get_num_threads()} threads"


def has_bfloat16(kind: str) -> bool:
    """Say whether a kind of device multiplies bfloat16 numbers by itself.

    One that does not is several times slower with them than with float32.
    """
    import torch

    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(known.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Let float32 products be made in TF32 within this block, unless that is "fp32"."""
    import torch

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        yield
    finally:
        torch.set_float32_matmul_precision(before)
