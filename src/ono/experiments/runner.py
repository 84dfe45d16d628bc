"""Run the jobs of experiments: each result once, under a time limit, some side by side."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ono.errors import Interrupted, RunInUse
from ono.experiments.cells import explain, run_job
from ono.experiments.costs import fills_a_gpu
from ono.experiments.datasets import OutOfTime, Progress, place_of, provide
from ono.experiments.gpu import device_is_lost, sharing
from ono.experiments.grid import Experiment, Job
from ono.experiments.jobs import Ended, Settings, identity_of, open_line
from ono.experiments.ledger import Ledger, Line, Status, latest
from ono.experiments.plan import Work, in_order, works_of
from ono.experiments.process import Processes
from ono.train.signals import StopRequest, stop_on_signals
from ono.train.state import Listener


@dataclass(slots=True)
class Summary:
    """What became of the jobs of a call: how many by status, done before, or not begun.

    Of those not begun, `elsewhere` counts the works that another call is at.
    """

    before: int = 0
    left: int = 0
    elsewhere: int = 0
    by_status: Counter[Status] = field(default_factory=Counter)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        others = self.by_status["stopped"] + self.by_status["failed"]
        return self.left + others == 0


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told: after each job, while data is made, while a job trains, and of Ctrl-C.

    A job that trains tells its listeners, also of Ctrl-C, if it is the only one at a time.
    """

    ended: Callable[[Ended, int, int], None] = lambda ended, number, total: None
    progress: Progress | None = None
    listeners: Sequence[Listener] = ()
    stopping: Callable[[str], None] = lambda message: None


def reproduce(
    experiments: Sequence[Experiment],
    settings: Settings,
    ledger: Ledger,
    *,
    seeds: int = 1,
    shard: tuple[int, int] = (1, 1),
    jobs: int | None = 1,
    only: str | None = None,
    watch: Watch | None = None,
) -> Summary:
    """Run what the ledger does not have yet; add a line for every job that ends.

    So many `jobs` run at once; if None, those on a GPU that leave much of it idle do. A job that
    the time limit stopped is continued by the next call. A signal stops the same way and is then
    raised as `Interrupted`.
    """
    lines = ledger.lines()
    works = works_of(experiments, settings.budget, seeds=seeds, shard=shard, only=only)
    works = in_order(works, experiments, settings.budget, lines)
    ledger.refuse_unwritable()
    call = _Call(works, settings, ledger, lines, watch or Watch())
    stopped_by: int | None = None
    try:
        for work, ended in call.run(jobs):
            call.record(work, ended)
            stopped_by = stopped_by or ended.signal_number
    except KeyboardInterrupt:  # between cells, or a second one
        stopped_by = signal.SIGINT
    stopped_by = stopped_by or call.request.signal_number
    if stopped_by is not None:
        raise Interrupted(
            f"stopped with {call.summary.left} of {call.total} cells not begun; the ledger is "
            f"{ledger.path}, the same command goes on from here",
            stopped_by,
        )
    return call.summary


class _Call:
    """One call: what is to do, what is known, and what has come out."""

    def __init__(
        self,
        works: Sequence[Work],
        settings: Settings,
        ledger: Ledger,
        lines: Sequence[Line],
        watch: Watch,
    ) -> None:
        self.works, self.settings, self.ledger, self.watch = works, settings, ledger, watch
        whole = [line for line in latest(lines).values() if line.status == "complete"]
        self.done = {line.key for line in whole}
        self.known = {line.work: line for line in whole}
        self.on_made = {
            (line.experiment, line.recipe_sha256, line.data_name, line.seed)
            for line in whole
            if line.data in ("made", "stand-in")
        }
        self.begun = {line.work: line.shared for line in lines if line.status == "stopped"}
        self.no_data: dict[Path, str] = {}
        self.total = sum(len(work.jobs) for work in works)
        self.summary = Summary(left=self.total)
        self.request = StopRequest()
        self.halted = False

    def record(self, work: Work, ended: Ended) -> None:
        """Add a line for every job that a work answers."""
        for job in work.jobs:
            own = {"experiment": job.experiment, "recipe": job.cell.recipe}
            line = ended.line.model_copy(update=own | {"changes": job.cell.changes})
            if line.shared is not None:  # its seconds are also those before it was stopped
                before = self.begun.get(line.work, 1)
                shared = None if before is None else max(line.shared, before)
                line = line.model_copy(update={"shared": shared})
            self.ledger.append(line)
            self.summary.left -= 1
            self.summary.by_status[line.status] += 1
            self.watch.ended(
                replace(ended, job=job, line=line), self.total - self.summary.left, self.total
            )

    def ready(self, works: Sequence[Work]) -> Iterator[Work]:
        """Yield the works that are still to do while there is time, each with its data in place."""
        for work in works:
            if self.late() or self.halted or self.request.signal_number is not None:
                return
            try:
                if not self.missing_without_data(work) or not self.provided(work):
                    continue
            except OutOfTime:
                return
            lines = {job: open_line(job, self.settings) for job in work.jobs}
            missing = tuple(job for job, line in lines.items() if line.key not in self.done)
            self.count_before(len(work.jobs) - len(missing))
            if missing and (line := self.answered(missing[0])) is not None:
                self.record(Work(missing), Ended(missing[0], line))
            elif missing:
                yield Work(missing)

    def missing_without_data(self, work: Work) -> bool:
        """Say whether a work needs its data; none is made only to see that all is done on it."""
        cell, settings = work.job.cell, self.settings
        place = place_of(cell, settings.budget, settings.data)
        if cell.kind == "eigenfunctions" or place.exists():
            return True
        recipe = identity_of(work.job, settings)
        if any((j.experiment, recipe, place.name, j.seed) not in self.on_made for j in work.jobs):
            return True
        self.count_before(len(work.jobs))
        return False

    def count_before(self, jobs: int) -> None:
        self.summary.before += jobs
        self.summary.left -= jobs

    def answered(self, job: Job) -> Line | None:
        """Return the line of another experiment that says all that this job would."""
        if job.cell.resolutions or job.cell.pictured:
            return None
        return self.known.get(open_line(job, self.settings).work)

    def provided(self, work: Work) -> bool:
        """Put data in place; where that fails, the cells that need it fail."""
        cell, settings = work.job.cell, self.settings
        if cell.kind == "eigenfunctions":
            return True
        place = place_of(cell, settings.budget, settings.data)
        if place not in self.no_data:
            try:
                provide(
                    cell,
                    settings.budget,
                    settings.data,
                    device=settings.device,
                    deadline=settings.deadline,
                    progress=self.watch.progress,
                    stopped=lambda: self.request.signal_number is not None,
                )
            except (OutOfTime, Interrupted):
                raise
            except Exception as error:  # a full disk, a solver that fails
                self.no_data[place] = f"no data: {explain(error)}"
        if place in self.no_data:
            self.record(work, self.without_data(work.job, self.no_data[place]))
        return place not in self.no_data

    def without_data(self, job: Job, reason: str) -> Ended:
        line = Line(
            experiment=job.experiment,
            recipe=job.cell.recipe,
            recipe_sha256="",
            data="none",
            seed=job.seed,
            budget=self.settings.budget.name,
            status="failed",
            reason=reason,
            time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        )
        return Ended(job, line)

    def tell_of_signal(self) -> None:
        self.watch.stopping(
            "stopping: the cells under way save what they have; Ctrl-C again stops at once, and "
            "they go on from their last checkpoints"
        )

    def late(self) -> bool:
        deadline = self.settings.deadline
        return deadline is not None and time.time() > deadline

    def run(self, jobs: int | None) -> Iterator[tuple[Work, Ended]]:
        """Run all works, so many at once; if None, as many as their device is for."""
        if jobs is None and (room := sharing(self.settings.device)) > 1:
            return self.packed(room)
        if jobs is None or jobs == 1:
            return self.one_by_one(self.works)
        return self.side_by_side(jobs, self.works)

    def packed(self, count: int) -> Iterator[tuple[Work, Ended]]:
        """Let cells share a GPU that each of them would leave idle for much of the time."""
        budget = self.settings.budget
        measured = [work for work in self.works if work.job.cell.kind == "speed"]
        long = [work for work in self.works if fills_a_gpu(work.job.cell, budget)]
        short = [work for work in self.works if work not in measured and work not in long]
        yield from self.one_by_one(measured)
        yield from self.side_by_side(count, short)
        yield from self.one_by_one(long)

    def one_by_one(self, works: Sequence[Work]) -> Iterator[tuple[Work, Ended]]:
        for work in self.ready(works):
            try:
                ended = run_job(work.job, self.settings, self.watch.listeners)
            except RunInUse:  # another call trains the same cell; its result is found next time
                self.summary.elsewhere += 1
                continue
            yield work, ended.shared_by(1)
            lost = ended.line.status == "failed" and device_is_lost()
            self.halted = lost or ended.signal_number is not None

    def side_by_side(self, count: int, works: Sequence[Work]) -> Iterator[tuple[Work, Ended]]:
        """Keep so many processes busy; a signal is passed on to all of them."""
        ready, told, elsewhere = self.ready(works), False, self.summary.elsewhere
        processes = Processes(count, self.settings)
        with stop_on_signals(self.tell_of_signal) as self.request, processes:
            while True:
                if self.request.signal_number is None:
                    processes.fill(ready)
                if not processes.running:
                    return
                processes.wait()
                if self.request.signal_number is not None and not told:
                    told = True
                    processes.stop()
                yield from processes.ended(self.request)
                self.summary.elsewhere = elsewhere + processes.elsewhere
