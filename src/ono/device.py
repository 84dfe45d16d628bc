"""Choose where to compute, and how exactly."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from ono.errors import InputError

if TYPE_CHECKING:
    import torch

# Names and the largest value of malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _LARGEST_IN_HEAP = -1, -3, 1 << 25


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
def matmul_precision(precision: str, device: torch.device | str) -> Iterator[None]:
    """Let a GPU make float32 products in TF32 within this block, unless that is "fp32".

    A CPU keeps all digits, whatever the precision, and is quick about it.
    """
    import torch

    if torch.device(device).type == "cpu":
        with quick_products(device):
            yield
        return
    with _float32_products("highest" if precision == "fp32" else "high"):
        yield


@contextmanager
def quick_products(device: torch.device | str) -> Iterator[None]:
    """Let oneDNN make the float32 products of a CPU within this block, where it rounds nothing.

    torch asks it only if it may round to bfloat16, which a CPU without matrix units for bfloat16
    makes no use of: the digits are those of float32. On CPUs of AMD it takes half the time of MKL,
    which keeps them from their wide registers. Nothing changes for a GPU.
    """
    import torch

    if torch.device(device).type == "cpu" and _rounds_nothing():
        with _float32_products("medium"):
            yield
        return
    yield


@contextmanager
def own_products() -> Iterator[None]:
    """Make float32 products within this block as torch does by itself."""
    with _float32_products("highest"):
        yield


def products_of_cpu() -> str:
    """Name the library that `quick_products` asks for products on this CPU."""
    return "oneDNN" if _rounds_nothing() else "the default of torch"


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    import torch

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@cache
def _rounds_nothing() -> bool:
    """Say whether oneDNN takes products that may be rounded to bfloat16 and rounds nothing."""
    import torch

    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    if not (wide and torch.backends.mkldnn.is_available()):
        return False
    # bfloat16 keeps eight digits of these numbers, which have twelve.
    a = 1 + torch.arange(64 * 64).reshape(64, 64) / 4096
    with _float32_products("medium"):
        made = a @ a
    exact = a.double() @ a.double()
    return bool(torch.allclose(made.double(), exact, rtol=1e-6, atol=0))


def shortage(error: BaseException) -> str | None:
    """Return what an error says if memory ran out, on a GPU or on the host; None for others.

    >>> shortage(MemoryError()), shortage(ValueError("no"))
    ('out of memory', None)
    """
    told = str(error)
    if isinstance(error, MemoryError):
        return told or "out of memory"
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return told.partition(". ")[0]
    # On a CPU torch has no error of its own for it, only these texts: the second is oneDNN's.
    for text in ("can't allocate memory", "could not create a primitive"):
        if text in told:
            return told[told.index(text) :].partition(". ")[0]
    return None


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, for its next tensors, until it ends.

    The C library of Linux gives it back to the system, which hands it out again page by page: a
    fifth of the time of a training step on a CPU. Elsewhere, and where the environment says what
    the library is to do (MALLOC_…), nothing happens.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    import ctypes

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc only
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, 2**31 - 1)
        set_option(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
