from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from ono import device


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_products_of_a_cpu_keep_all_digits(precision: str) -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(300, 300, generator=draw) for _ in range(2))
    exact = a.double() @ b.double()
    with device.matmul_precision(precision, "cpu"):
        error = (a @ b - exact).norm() / exact.norm()
    assert error < 1e-6


def test_a_cpu_that_would_round_is_not_allowed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_rounds_nothing", lambda: False)
    with device.matmul_precision("tf32", "cpu"):
        assert torch.get_float32_matmul_precision() == "highest"
    assert device.products_of_cpu() == "the default of torch"


def test_a_cpu_that_keeps_all_digits_may_ask_one_dnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_rounds_nothing", lambda: True)
    with device.matmul_precision("fp32", "cpu"):
        assert torch.get_float32_matmul_precision() == "medium"
        with device.own_products():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("precision", "within"), [("fp32", "highest"), ("tf32", "high")])
def test_a_gpu_rounds_to_tf32_unless_told_not_to(precision: str, within: str) -> None:
    with device.matmul_precision(precision, "cuda"):
        assert torch.get_float32_matmul_precision() == within
        with device.quick_products("cuda"):
            assert torch.get_float32_matmul_precision() == within
    assert torch.get_float32_matmul_precision() == "highest"


STEPS = """
import resource, sys
from ono.device import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
import torch
from torch import nn
net = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(64, 64), nn.GELU())))
x, fetched = torch.ones(8000, 64), []
for _ in range(12):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    net(x).sum().backward()
    fetched.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(fetched[6:])[3])  # one stray allocation does not count
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of the GNU C library")
def test_freed_memory_is_not_fetched_again() -> None:
    def pages_fetched(how: str) -> int:
        command = [sys.executable, "-c", STEPS, how]
        return int(subprocess.run(command, check=True, capture_output=True).stdout)

    assert 10 * pages_fetched("keep") < pages_fetched("give back")
