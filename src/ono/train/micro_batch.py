"""Batches that do not fit into memory are taken in parts, and the parts' gradients added.

The batch that a step learns from stays the same. So does the step, except where samples meet: with
`eigen.covariance` batch or ema each part is whitened by a covariance of its own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from ono.device import shortage
from ono.errors import OutOfMemory
from ono.train.step import Step


def in_memory(step: Step, samples: int, action: Callable[[], None]) -> None:
    """Do something that takes steps; if memory runs out, again with parts of half the size.

    The action must leave everything as it was when it fails, besides gradients and sums.
    """
    while (reason := _attempt(action)) is not None:
        # Out of the reach of the exception, whose traceback holds what filled the memory.
        _forget(step)
        size = min(step.micro_batch or samples, samples)
        if size == 1:
            raise OutOfMemory(
                f"one sample does not fit into memory ({reason}); set train.recompute=true, "
                "train.streams=false or train.precision=bf16, thin the points with data.thin=2, or "
                "choose a smaller data.resolution or model.width"
            )
        step.micro_batch = -(-size // 2)
        step.warn(
            f"memory ran out with {size} samples at a time ({reason}); going on with "
            f"{step.micro_batch}, gradients of a batch are added"
        )


def _attempt(action: Callable[[], None]) -> str | None:
    """Return what is said when memory runs out."""
    try:
        action()
    except (RuntimeError, MemoryError) as error:
        # A recording that ends early may raise an error of its own on top.
        cause: BaseException | None = error
        while cause is not None and (reason := shortage(cause)) is None:
            cause = cause.__context__
        if cause is None:
            raise
        return reason
    return None


def _forget(step: Step) -> None:
    """Drop what a step had gathered before it failed."""
    step.forget()
    gc.collect()
    if step.rate.is_cuda:
        torch.cuda.empty_cache()
