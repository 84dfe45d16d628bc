"""Jobs in processes of their own: they are told to stop by their parent, and may die alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from ono.errors import RunInUse
from ono.experiments.cells import explain, run_job
from ono.experiments.grid import Job
from ono.experiments.jobs import Ended, Settings, open_line
from ono.experiments.plan import Work
from ono.train.signals import StopRequest
from ono.train.state import Event, Listener

_LOOK_EVERY = 0.5


@dataclass(slots=True)
class WorkProcess:
    """A work under way, where its answer will come, and how many were under way at once."""

    work: Work
    process: SpawnProcess
    answer: Connection
    shared: int = 1

    @classmethod
    def start(cls, work: Work, settings: Settings) -> WorkProcess:
        """Begin a work at once."""
        context = multiprocessing.get_context("spawn")
        answer, question = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(question, work.job, settings, os.getpid()))
        process.start()
        question.close()
        return cls(work, process, answer)

    @property
    def over(self) -> bool:
        """Whether it has answered or died."""
        return not self.process.is_alive() or self.answer.poll()

    def result(self, settings: Settings, signal_number: int | None) -> Ended | None:
        """Return how the job ended, also if its process died; None if it is run elsewhere."""
        try:
            ended: Ended | None = self.answer.recv()
        except EOFError:
            self.process.join()
            line, code = open_line(self.work.job, settings), self.process.exitcode
            if signal_number is None:
                reason = f"the process of this cell ended with exit code {code}"
                line = line.model_copy(update={"status": "failed", "reason": reason})
            return Ended(self.work.job, line, signal_number)
        self.process.join()
        return ended


class Processes:
    """Works under way side by side, at most so many. None outlives the block that opens this."""

    def __init__(self, count: int, settings: Settings) -> None:
        self.count, self.settings = count, settings
        self.running: list[WorkProcess] = []
        self.waiting: Work | None = None
        self.elsewhere = 0

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Also when something failed in the block: what they have is saved.
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            for one in self.running:  # asked twice: what they saved before is what they keep
                one.process.kill()
        self.stop()
        for one in self.running:
            one.process.join()

    def fill(self, works: Iterator[Work]) -> None:
        """Start works while there is room; one that must be alone waits, and others for it."""
        while len(self.running) < self.count:
            # Nor may the data of the next work be made beside one that measures.
            if self.running and _measures(self.running[-1].work):
                return
            work, self.waiting = self.waiting or next(works, None), None
            if work is None:
                return
            if self.running and _measures(work):
                self.waiting = work
                return
            self.running.append(WorkProcess.start(work, self.settings))
            for one in self.running:
                one.shared = max(one.shared, len(self.running))

    def wait(self) -> None:
        """Wait until a process ends, but not for long."""
        connection.wait([one.process.sentinel for one in self.running], timeout=_LOOK_EVERY)

    def stop(self) -> None:
        """Ask all to save what they have and end."""
        for one in self.running:
            one.process.terminate()

    def ended(self, request: StopRequest) -> Iterator[tuple[Work, Ended]]:
        """Yield the works that are over, and how they ended."""
        for one in [process for process in self.running if process.over]:
            self.running.remove(one)
            ended = one.result(self.settings, request.signal_number)
            if ended is None:
                self.elsewhere += 1
            else:
                number = request.signal_number or ended.signal_number
                yield one.work, replace(ended.shared_by(one.shared), signal_number=number)


def _measures(work: Work) -> bool:
    """Say whether others at work on the same device would change the result."""
    return work.job.cell.kind == "speed"


def _work(question: Connection, job: Job, settings: Settings, parent: int) -> None:
    # Ctrl-C goes to all processes of a terminal; this one is told by its parent alone.
    os.setsid()
    try:
        question.send(run_job(job, settings, [_stop_without(parent)]))
    except BrokenPipeError:  # nobody waits for an answer any more; what was trained is saved
        return
    except RunInUse:
        question.send(None)
    except Exception as error:
        told = {"status": "failed", "reason": explain(error)}
        question.send(Ended(job, open_line(job, settings).model_copy(update=told)))


def _stop_without(parent: int) -> Listener:
    """Return a listener that stops a training once its parent is gone, also if that was killed."""

    def listen(event: Event) -> None:
        if event.kind == "step" and os.getppid() != parent:
            signal.raise_signal(signal.SIGTERM)

    return listen
