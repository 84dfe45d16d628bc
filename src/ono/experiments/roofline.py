"""The shortest time a training step could take on a device: its roofline.

A step has to do its products and to move its data, so it takes at least the longer of FLOP over
the peak of the device and bytes over its bandwidth. Both peaks are measured, not looked up.

Bytes are those of layers that are executed one by one, with everything between them for free. A
step that does several layers in one kernel moves less and may pass below this floor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ono.data.view import Batch, View
from ono.device import matmul_precision
from ono.train.prepare import new_operator
from ono.train.recipe import Recipe
from ono.train.step import at_times, loss_options, sample_losses

# Read and written in an update: the weight, its gradient and its two moments, in float32.
_BYTES_OF_A_WEIGHT = 8 * 4
# How long a peak is looked for.
_SECONDS = 0.08


@dataclass(frozen=True, slots=True)
class Work:
    """What a step has to do: floating-point operations, and bytes to and from memory."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a device can do in a second, as measured: operations, and bytes read or written."""

    flops: float
    bandwidth: float

    def milliseconds(self, work: Work) -> float:
        """Return the least time for some work.

        >>> Peaks(flops=1e12, bandwidth=1e9).milliseconds(Work(flops=2e9, bytes=1e6))
        2.0
        """
        return 1000 * max(work.flops / self.flops, work.bytes / self.bandwidth)


def step_work(recipe: Recipe, view: View) -> Work:
    """Count what a step of a recipe has to do, on the CPU and for one sample of its batch.

    FLOP are those of products, convolutions and attention in an eager forward and backward pass,
    without recomputation. Fourier transforms are not counted, and a complex product counts as a
    real one. Bytes: inputs and targets once; weights, gradients and moments once read and once
    written; and what goes into and comes out of every module with weights of its own, once forward
    and twice backward, in the precision of the recipe.
    """
    operator = new_operator(recipe, view).train()
    sample = view.read(np.arange(1))
    if recipe.train.times is not None and sample.times is not None:
        sample = at_times(sample, torch.arange(min(recipe.train.times, len(sample.times))))
    moved = _Moved(operator)
    with FlopCounterMode(display=False, custom_mapping=_ATTENTION) as counter:
        sample_losses(operator, sample, **loss_options(recipe)).mean().backward()
    width = 2 if recipe.train.precision == "bf16" else 4
    weights = sum(parameter.numel() for parameter in operator.parameters())
    each = 4 * _numbers(sample) + 3 * width * moved.numbers
    return Work(
        float(recipe.train.batch * counter.get_total_flops()),
        float(recipe.train.batch * each + _BYTES_OF_A_WEIGHT * weights),
    )


@cache
def measure_peaks(device: str, precision: str) -> Peaks:
    """Measure a large product in the precision of a recipe, and a large copy."""
    where = torch.device(device)
    large = where.type == "cuda"
    side, words = (8192, 1 << 28) if large else (1024, 1 << 25)
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b, c = (torch.ones(side, side, dtype=kind, device=where) for _ in range(3))
    with matmul_precision(precision, where):
        product = _fastest(lambda: torch.mm(a, b, out=c), where)
    source = torch.ones(words, device=where)
    target = torch.zeros_like(source)
    copy = _fastest(lambda: target.copy_(source), where)
    return Peaks(2 * side**3 / product, 2 * source.nbytes / copy)


def _fastest(action: Callable[[], Any], where: torch.device) -> float:
    """Return the seconds an action takes at best."""

    def several(times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            action()
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        return (time.perf_counter() - began) / times

    several(1)  # loads what is needed
    # Several at a time: to wait for a GPU takes as long as some kernels.
    times = max(1, int(_SECONDS / 4 / several(1)))
    return min(several(times) for _ in range(4))


def _attention(q: Sequence[int], k: Sequence[int], *rest: Any, **options: Any) -> int:
    """Return the FLOP of q kᵀ and of its softmax times v."""
    return 4 * math.prod(q) * k[-2]


def _attention_backward(
    grad: Sequence[int], q: Sequence[int], k: Sequence[int], *rest: Any, **options: Any
) -> int:
    """Return the FLOP of the four products that lead to the gradients of q, k and v."""
    return 2 * _attention(q, k)


# What torch does not count by itself: it knows the attention of GPUs only.
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


def _numbers(batch: Batch) -> int:
    fields = (batch.domain.coords, batch.values, batch.target, batch.history)
    return sum(field.numel() for field in fields if field is not None)


class _Moved:
    """Count the numbers that go into and come out of the modules that only have weights."""

    def __init__(self, operator: nn.Module) -> None:
        self.numbers = 0
        for module in operator.modules():
            is_leaf = next(module.children(), None) is None
            if is_leaf and next(module.parameters(), None) is not None:
                module.register_forward_hook(self._add)

    def _add(self, module: nn.Module, given: tuple[Any, ...], found: Any) -> None:
        told = (*given, found)
        self.numbers += sum(x.numel() for x in told if isinstance(x, Tensor))
