"""The random numbers of a run: they start from its seed, and a resumed run goes on in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


class Randomness:
    """The generators of host and device, as operators with dropout draw from them."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self.host_state = torch.Generator().manual_seed(seed).get_state()
        self.device_state = torch.Generator(device).manual_seed(seed).get_state()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Let torch draw from here; what it drew from before goes on afterwards, untouched."""
        with torch.random.fork_rng():
            torch.set_rng_state(self.host_state)
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(self.device_state, self.device)
            yield

    def state(self) -> dict[str, Tensor]:
        """Return where the generators in use are now."""
        on_gpu = self.device.type == "cuda"
        now = torch.cuda.get_rng_state(self.device) if on_gpu else self.device_state
        return {"rng": torch.get_rng_state(), "device_rng": now}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned, from the next use on."""
        self.host_state, self.device_state = state["rng"], state["device_rng"]
