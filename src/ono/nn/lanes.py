"""Work that may go on beside other work: streams of a GPU, or one after the other elsewhere.

What one lane has made and another reads must be held until the second has read it: memory goes
back to the lane it came from, which may give it away at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch


@dataclass(slots=True)
class Lane:
    """A stream to work on; none is the current one."""

    stream: torch.cuda.Stream | None = None
    entered: bool = False

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
            self.entered = True


@contextlib.contextmanager
def lanes(count: int, device: torch.device, beside: bool) -> Iterator[list[Lane]]:
    """Yield so many lanes, the first of them the current stream; all are, if not `beside`.

    At the end the first one waits for all others, also after an error: work that is left alone
    would spoil a recording, and could meet memory that was given away.

    >>> with lanes(2, torch.device("cpu"), beside=True) as found:
    ...     [lane.stream for lane in found]
    [None, None]
    """
    if device.type != "cuda" or not beside:
        yield [Lane()] * count
        return
    current = torch.cuda.current_stream(device)
    first, *others = [Lane(stream) for stream in (current, *_others(count - 1, current))]
    try:
        yield [first, *others]
    except BaseException:
        with contextlib.suppress(RuntimeError):  # of a GPU that is lost; the first error counts
            _join(first, others)
        raise
    _join(first, others)


def _join(first: Lane, others: list[Lane]) -> None:
    for lane in others:
        if lane.entered:  # one that was not has no part in a recording
            first.behind(lane)


@cache
def _others(count: int, current: torch.cuda.Stream) -> list[torch.cuda.Stream]:
    """Return streams that go with a stream: who works on another one has others."""
    return [torch.cuda.Stream(current.device) for _ in range(count)]
