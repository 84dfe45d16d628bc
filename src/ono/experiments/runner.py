"""Run the jobs of experiments: each once, under a time limit, some side by side."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from ono.errors import Interrupted, OnoError, RunInUse
from ono.experiments.cells import Ended, Settings, open_line, run_job
from ono.experiments.datasets import OutOfTime, Progress, provide
from ono.experiments.grid import Experiment, Job, jobs_of
from ono.experiments.ledger import Ledger, Status, latest
from ono.train.signals import stop_on_signals
from ono.train.state import Listener

_LOOK_EVERY = 0.5


@dataclass(slots=True)
class Summary:
    """What became of the jobs of a call: how many by status, done before, or not begun."""

    before: int = 0
    left: int = 0
    by_status: Counter[Status] = field(default_factory=Counter)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        others = self.by_status["stopped"] + self.by_status["failed"]
        return self.left + others == 0


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told: after each job, while data is made, and while a job trains (one at a time)."""

    ended: Callable[[Ended, int, int], None] = lambda ended, number, total: None
    progress: Progress | None = None
    listeners: Sequence[Listener] = ()


def reproduce(
    experiments: Sequence[Experiment],
    settings: Settings,
    ledger: Ledger,
    *,
    seeds: int = 1,
    shard: tuple[int, int] = (1, 1),
    jobs: int = 1,
    watch: Watch | None = None,
) -> Summary:
    """Run what the ledger does not have yet; add a line for every job that ends.

    A job that the time limit stopped is continued by the next call. A signal stops the same way
    and is then raised as `Interrupted`.
    """
    watch, summary = watch or Watch(), Summary()
    wanted = jobs_of(experiments, seeds, shard)
    summary.left = len(wanted)
    todo = _ready(wanted, settings, ledger, summary, watch)
    ends = _one_by_one(todo, settings, watch) if jobs == 1 else _side_by_side(todo, settings, jobs)
    stopped_by: int | None = None
    for ended in ends:
        ledger.append(ended.line)
        summary.left -= 1
        summary.by_status[ended.line.status] += 1
        watch.ended(ended, len(wanted) - summary.left, len(wanted))
        stopped_by = stopped_by or ended.signal_number
    if stopped_by is not None:
        raise Interrupted(
            f"stopped with {summary.left} of {len(wanted)} cells not begun; the ledger is "
            f"{ledger.path}, the same command goes on from here",
            stopped_by,
        )
    return summary


def _ready(
    wanted: Sequence[Job], settings: Settings, ledger: Ledger, summary: Summary, watch: Watch
) -> Iterator[Job]:
    """Yield the jobs that are still to do while there is time, each with its data in place."""
    held = latest(ledger.lines())
    done = {key for key, line in held.items() if line.status == "complete"}
    for job in wanted:
        if settings.deadline is not None and time.time() > settings.deadline:
            return
        if job.cell.kind != "eigenfunctions":
            try:
                provide(
                    job.cell,
                    settings.budget,
                    settings.data,
                    device=settings.device,
                    deadline=settings.deadline,
                    progress=watch.progress,
                )
            except OutOfTime:
                return
        if open_line(job, settings).key in done:
            summary.before += 1
            summary.left -= 1
        else:
            yield job


def _one_by_one(todo: Iterator[Job], settings: Settings, watch: Watch) -> Iterator[Ended]:
    for job in todo:
        try:
            ended = run_job(job, settings, watch.listeners)
        except RunInUse:  # another experiment trains the same cell; its result is found next time
            continue
        yield ended
        if ended.signal_number is not None:
            return


def _side_by_side(todo: Iterator[Job], settings: Settings, count: int) -> Iterator[Ended]:
    """Keep so many processes busy, one for each job; a signal is passed on to all of them."""
    running: list[_Process] = []
    told = False
    try:
        with stop_on_signals() as request:
            while True:
                while len(running) < count and request.signal_number is None:
                    job = next(todo, None)
                    if job is None:
                        break
                    running.append(_Process.start(job, settings))
                if not running:
                    return
                connection.wait([p.process.sentinel for p in running], timeout=_LOOK_EVERY)
                if request.signal_number is not None and not told:
                    told = True
                    _stop(running)
                for process in [p for p in running if p.over]:
                    running.remove(process)
                    ended = process.result(settings, request.signal_number)
                    if ended is not None and request.signal_number is not None:
                        ended = replace(ended, signal_number=request.signal_number)
                    if ended is not None:
                        yield ended
    finally:  # also when making data was interrupted: what they have is saved
        _stop(running)
        for process in running:
            process.process.join()


def _stop(running: Sequence[_Process]) -> None:
    for process in running:
        process.process.terminate()


@dataclass(frozen=True, slots=True)
class _Process:
    """A job in a process of its own, and where its answer will come."""

    job: Job
    process: SpawnProcess
    answer: Connection

    @classmethod
    def start(cls, job: Job, settings: Settings) -> _Process:
        context = multiprocessing.get_context("spawn")
        answer, question = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(question, job, settings))
        process.start()
        question.close()
        return cls(job, process, answer)

    @property
    def over(self) -> bool:
        return not self.process.is_alive() or self.answer.poll()

    def result(self, settings: Settings, signal_number: int | None) -> Ended | None:
        """Return how the job ended, also if its process died; None if it is run elsewhere."""
        try:
            ended: Ended | None = self.answer.recv()
        except EOFError:
            self.process.join()
            line, code = open_line(self.job, settings), self.process.exitcode
            if signal_number is None:
                reason = f"the process of this cell ended with exit code {code}"
                line = line.model_copy(update={"status": "failed", "reason": reason})
            return Ended(self.job, line, signal_number)
        self.process.join()
        return ended


def _work(question: Connection, job: Job, settings: Settings) -> None:
    # Ctrl-C goes to all processes of a terminal; this one is told by its parent alone.
    os.setsid()
    try:
        question.send(run_job(job, settings))
    except RunInUse:
        question.send(None)
    except OnoError as error:
        line = open_line(job, settings).model_copy(
            update={"status": "failed", "reason": str(error)}
        )
        question.send(Ended(job, line))
