"""What the GPU of an experiment allows: how many cells share it, and whether it still answers."""

from __future__ import annotations

import torch

from ono.device import choose_device

_SHARING = 4
"""Cells with short steps that share a GPU, if it has room for them."""
_ROOM = 8 << 30
"""Bytes that are more than any of them needs."""


def sharing(device: str) -> int:
    """Return how many cells with short steps may run on a device at once.

    >>> sharing("cpu")
    1
    """
    name = choose_device(device)
    if not name.startswith("cuda"):
        return 1
    free, _ = torch.cuda.mem_get_info(name)
    return max(1, min(_SHARING, free // _ROOM))


def device_is_lost() -> bool:
    """Say whether an error left the GPU unusable for this process."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
