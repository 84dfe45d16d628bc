"""Look at the machine a run would use."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch

import ono
from ono.device import products_of_cpu


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    what: str
    found: str
    verdict: Literal["ok", "note", "bad"] = "ok"


def diagnose() -> list[Finding]:
    """Return what is worth knowing before a long run."""
    return [
        Finding("ono", ono.__version__),
        Finding("python", platform.python_version()),
        *(Finding(name, version(name)) for name in ("torch", "numpy", "scipy", "pydantic")),
        Finding("cpu", _cpu()),
        _cuda(),
        _whitening(),
        _memory(),
        _disk(),
        *(
            _extra(module, extra)
            for module, extra in (("tensorboard", "track"), ("meshio", "mesh"))
        ),
    ]


def _cpu() -> str:
    cores, threads = os.cpu_count(), torch.get_num_threads()
    return f"{cores} cores, torch uses {threads} threads, products by {products_of_cpu()}"


def _cuda() -> Finding:
    if not torch.cuda.is_available():
        return Finding("cuda", "no device; training runs on the CPU", "note")
    free, total = torch.cuda.mem_get_info()
    name = torch.cuda.get_device_name()
    return Finding("cuda", f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free")


def _whitening() -> Finding:
    """Factor covariances as training does and compare with the definition."""
    from ono.nn.whitening import inverse_cholesky

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        g = torch.randn(8, 400, 16, dtype=torch.float64, device=device)
    covariance = g.mT @ g / g.shape[1]
    inverse, info = inverse_cholesky(covariance, ridge=0.0)
    identity = torch.eye(16, dtype=torch.float64, device=device)
    defect = float((inverse @ covariance @ inverse.mT - identity).abs().max())
    good = defect < 1e-10 and not bool(info.any())
    return Finding(
        "whitening", f"|L⁻¹CL⁻ᵀ - I| = {defect:.0e} on {device}", "ok" if good else "bad"
    )


def _memory() -> Finding:
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / 2**30
    return Finding("memory", f"{free:.1f} GiB free", "ok" if free > 2 else "note")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    try:
        with tempfile.TemporaryFile(dir=Path.cwd()):
            pass
    except OSError as error:
        return Finding("disk", f"this directory cannot be written: {error.strerror}", "bad")
    return Finding("disk", f"{free:.0f} GiB free here", "ok" if free > 5 else "note")


def _extra(module: str, extra: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(module, f'not installed; `pip install "ono[{extra}]"`', "note")
    return Finding(module, version(module))
