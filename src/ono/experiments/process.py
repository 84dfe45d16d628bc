"""A job in a process of its own: it is told to stop by its parent, and may die alone."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from ono.errors import RunInUse
from ono.experiments.cells import explain, run_job
from ono.experiments.grid import Job
from ono.experiments.jobs import Ended, Settings, open_line
from ono.experiments.plan import Work


@dataclass(frozen=True, slots=True)
class WorkProcess:
    """A work under way, and where its answer will come."""

    work: Work
    process: SpawnProcess
    answer: Connection

    @classmethod
    def start(cls, work: Work, settings: Settings) -> WorkProcess:
        """Begin a work at once."""
        context = multiprocessing.get_context("spawn")
        answer, question = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(question, work.job, settings))
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


def stop_all(running: Sequence[WorkProcess]) -> None:
    """Ask processes to save what they have and end."""
    for one in running:
        one.process.terminate()


def _work(question: Connection, job: Job, settings: Settings) -> None:
    # Ctrl-C goes to all processes of a terminal; this one is told by its parent alone.
    os.setsid()
    try:
        question.send(run_job(job, settings))
    except RunInUse:
        question.send(None)
    except Exception as error:
        told = {"status": "failed", "reason": explain(error)}
        question.send(Ended(job, open_line(job, settings).model_copy(update=told)))
