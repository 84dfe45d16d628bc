"""When memory runs out in an evaluation: again with fewer samples at a time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from ono.device import shortage
from ono.errors import OutOfMemory

Result = TypeVar("Result")


def halving(batch: int, action: Callable[[int], Result]) -> Result:
    """Call an action with a size of batches, and with half of it as long as memory runs out.

    >>> def short(batch: int) -> int:
    ...     if batch > 10:
    ...         raise torch.OutOfMemoryError("CUDA out of memory")
    ...     return batch
    >>> halving(32, short)
    8
    """
    while True:
        try:
            return action(batch)
        except (RuntimeError, MemoryError) as error:
            if (reason := shortage(error)) is None:
                raise
            if batch == 1:
                raise OutOfMemory(
                    f"one sample does not fit into memory ({reason}); "
                    "choose a smaller data.resolution or model.width, or another device"
                ) from None
        # Behind the exception, whose traceback holds what filled the memory.
        batch = -(-batch // 2)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
