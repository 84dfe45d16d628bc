"""Stop politely: a signal only sets a flag, the loop saves at the next step."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class StopRequest:
    """Which signal asked to stop, if one did."""

    signal_number: int | None = None


@contextlib.contextmanager
def stop_on_signals(told: Callable[[], None] | None = None) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request; a second Ctrl-C is a KeyboardInterrupt, at once.

    `told` is called when the first Ctrl-C comes, as a step may take a while. A third one ends the
    process also where it waits for a device and Python cannot act.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        request.signal_number = number
        signal.signal(signal.SIGINT, interrupt)
        if told is not None and number == signal.SIGINT:
            with contextlib.suppress(RuntimeError):  # it came in the midst of writing a line
                told()

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
