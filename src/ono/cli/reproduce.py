"""`ono reproduce`: the tables and figures of the paper, cell by cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ono.experiments.jobs import Ended
    from ono.experiments.listing import Listed
    from ono.train.state import Event, Listener

_TELL_SECONDS = 60.0


def reproduce(
    experiments: Annotated[
        list[str],
        typer.Argument(
            help="main, limited-data, runtime, super-resolution, temporal, blocks, "
            "orthogonalisation, scaling, eigenfunctions; or all.",
            metavar="EXPERIMENT...",
        ),
    ],
    budget: Annotated[
        str,
        typer.Option(help="smoke (minutes on a CPU), short (100 epochs) or paper (500)."),
    ] = "short",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after so long; the next call goes on.")
    ] = None,
    shard: Annotated[
        str, typer.Option(help="Run the i-th of n equal parts, as i/n.", metavar="I/N")
    ] = "1/1",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Cells at once, each in its process. Default: on a GPU those that leave it idle.",
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help='Cells named like this, such as "elasticity/*,darcy/ono".')
    ] = None,
    data: Annotated[Path, typer.Option(help="Where datasets are, or will be made.")] = Path("data"),
    ledger: Annotated[Path, typer.Option(help="Where results are added.")] = Path(
        "results/ledger.jsonl"
    ),
    runs: Annotated[
        Path | None,
        typer.Option(help="Where trainings are, to go on with. Default: beside the ledger."),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the cells in order, what is done, and minutes.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells and what they would change.")
    ] = False,
) -> None:
    """Run the experiments of the paper; what the ledger has is not repeated."""
    from ono.experiments import catalogue
    from ono.experiments.budgets import budget as find_budget
    from ono.experiments.grid import parse_shard
    from ono.experiments.plan import works_of

    names = catalogue.NAMES if "all" in experiments else experiments
    chosen = [catalogue.experiment(name) for name in names]
    work, part = find_budget(budget), parse_shard(shard)
    if dry_run:
        works = works_of(chosen, work, seeds=seeds, shard=part, only=only)
        listed = [job for one in works for job in one.jobs]
        for experiment in chosen:
            typer.echo(f"{experiment.name}: {experiment.title}, budget {work.name} ({work.note})")
            for job in listed:
                if job.experiment == experiment.name:
                    changes = " ".join(work.changes(job.cell))
                    typer.echo(f"  {job.cell.recipe}  {changes}  seed={job.seed}")
        return
    if list_:
        from ono.experiments.ledger import Ledger
        from ono.experiments.listing import listing

        lines = Ledger(ledger).lines()
        where = "one core of a CPU" if work.is_smoke else "an NVIDIA H200"
        _list(listing(chosen, work, lines, seeds=seeds, shard=part, only=only), where)
        return

    from ono.device import choose_device

    choose_device(device)

    from ono.experiments.jobs import Settings
    from ono.experiments.ledger import Ledger
    from ono.experiments.runner import Watch, reproduce

    deadline = None if minutes is None else time.time() + 60 * minutes
    settings = Settings(
        work, data, runs or ledger.parent / "runs", device, deadline, ledger.parent / "pictures"
    )
    typer.echo(f"budget {work.name}: {work.note}; ledger {ledger}", err=True)
    watch = Watch(_show, _making(), [_epochs()], lambda text: typer.echo(text, err=True))
    summary = reproduce(
        chosen, settings, Ledger(ledger), seeds=seeds, shard=part, jobs=jobs, only=only, watch=watch
    )
    done = summary.by_status
    typer.echo(
        f"{done['complete']} complete, {summary.before} done before, {done['stopped']} stopped, "
        f"{done['failed']} failed, {summary.left} not begun"
    )
    if summary.elsewhere:
        typer.echo(f"{summary.elsewhere} of these are being run by another call; wait for it")
    if not summary.complete:
        typer.echo("run the same command again to go on")
    if done["failed"]:
        raise typer.Exit(1)


def _list(every: Sequence[Listed], where: str) -> None:
    for one in every:
        guess = f"{'' if one.measured else '~'}{_time(one.minutes)}"
        wanted = ", ".join(dict.fromkeys(job.experiment for job in one.work.jobs))
        job = one.work.job
        typer.echo(f"{one.state:<14}{guess:>10}  {job.cell}, seed {job.seed}  ({wanted})")
    left = [one for one in every if one.state != "complete"]
    needed = sum((one.minutes for one in left), 0.0)
    typer.echo(
        f"{len(every) - len(left)} of {len(every)} complete; about "
        f"{_time(needed)} left one after the other, without making data "
        f"(~: estimated for {where}, the others as in the ledger)"
    )


def _time(minutes: float) -> str:
    return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.1f} min"


def _show(ended: Ended, number: int, total: int) -> None:
    line = ended.line
    told = {
        "complete": "  ".join(f"{name} {value:.4f}" for name, value in line.values.items()),
        "stopped": f"stopped after {line.epochs} epochs",
        "failed": f"failed: {line.reason}",
    }[line.status]
    typer.echo(f"[{number}/{total}] {ended.job}: {told}")


def _making() -> Callable[[int, int], None]:
    """Return a callback that tells of every tenth of a dataset."""
    told = -1

    def tell(done: int, total: int) -> None:
        nonlocal told
        if 10 * done // total != told:
            told = 10 * done // total
            typer.echo(f"making data: {done} of {total} samples", err=True)

    return tell


def _epochs() -> Listener:
    """Return a listener that tells how a long training goes, once a minute, and of Ctrl-C."""
    told = time.monotonic()

    def listen(event: Event) -> None:
        nonlocal told
        if event.kind == "epoch" and time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            loss = event.details["train"]
            typer.echo(f"  epoch {event.state.epoch}/{event.epochs}: train {loss:.4f}", err=True)
        elif event.kind == "signal":
            typer.echo(event.details["message"], err=True)

    return listen
