"""Work that may go on beside other work: streams of a GPU, or one after the other elsewhere.

What one lane has made and another reads must be held until the second has read it: memory goes
back to the lane it came from, which may give it away at once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream to work on; none is the current one."""

    stream: torch.cuda.Stream | None = None

    def open(self) -> contextlib.AbstractContextManager[object]:
        """Let what follows go into this lane."""
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def behind(self, other: Lane) -> None:
        """Let what follows here wait for all that is in another lane now."""
        self.wait(other.mark())

    def mark(self) -> torch.cuda.Event | None:
        """Return the present end of this lane."""
        return None if self.stream is None else self.stream.record_event()

    def wait(self, mark: torch.cuda.Event | None) -> None:
        """Let what follows here wait for a mark."""
        if self.stream is not None and mark is not None:
            self.stream.wait_event(mark)


def lanes(count: int, device: torch.device, beside: bool) -> list[Lane]:
    """Return so many lanes, the first of them the current stream; all are, if not `beside`.

    >>> lanes(2, torch.device("cpu"), beside=True)
    [Lane(stream=None), Lane(stream=None)]
    """
    if device.type != "cuda" or not beside:
        return [Lane()] * count
    return [Lane(torch.cuda.current_stream(device)), *_others(count - 1, device)]


@cache
def _others(count: int, device: torch.device) -> list[Lane]:
    return [Lane(torch.cuda.Stream(device)) for _ in range(count)]
