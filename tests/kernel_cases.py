"""Where kernels are tested: on a GPU, or else line by line in Triton's interpreter.

The interpreter finds wrong numbers, not what a compiler makes of the code. It has neither bfloat16
products nor assembler: there, kernels are asked for float32 instead.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ono.nn.fused_form import Form
from ono.nn.fused_launch import available

ON_GPU = available()
DEVICE = "cuda" if ON_GPU else "cpu"
EXACT = "bf16x6" if ON_GPU else "ieee"
KERNELS = [
    pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="needs Triton"),
    # Where nothing is, nothing is read, and what was computed there may overflow.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
if ON_GPU:
    KERNELS.append(pytest.mark.gpu)


def distances(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> list[float]:
    """Return by how much of its size every gradient is off.

    One that is nothing but rounding, as that of a bias that a batch norm takes away again, is held
    against the largest of them.
    """
    sizes = [expected.norm() for expected in theirs]
    largest = max(sizes)
    return [
        float((found - expected).norm() / (size if size > 1e-5 * largest else largest))
        for found, expected, size in zip(ours, theirs, sizes, strict=True)
    ]


def described(monkeypatch: pytest.MonkeyPatch, tight: bool) -> None:
    """Let kernels be given descriptors however few programs there are."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs a GPU that copies tiles by itself")

    def of(programs: int, points: int, width: int, precision: str, device: object) -> Form:
        return Form(points, precision == "bf16", tight and precision == "bf16")

    monkeypatch.setattr(Form, "of", of)
