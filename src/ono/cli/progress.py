"""Show long work and its results: bars on a terminal, plain lines elsewhere; tables."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ono.train.state import Event, Listener


@contextlib.contextmanager
def counting(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback (done, total) that draws a bar, or writes a line every tenth."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bars:
            task = bars.add_task(label, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)
        return
    told = -1

    def tell(done: int, total: int) -> None:
        nonlocal told
        if 10 * done // total > told:
            told = 10 * done // total
            typer.echo(f"{label}: {done} of {total}", err=True)

    yield tell


@contextlib.contextmanager
def working(label: str) -> Iterator[None]:
    """Show a spinner while something without steps is done."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield


@contextlib.contextmanager
def training() -> Iterator[Listener]:
    """Yield a listener that shows epochs, errors and the time that is left."""
    if not sys.stderr.isatty():
        yield _lines
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[errors]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bars:
        task = bars.add_task("training", total=None, epoch="1", errors="")

        def listen(event: Event) -> None:
            epoch = f"{min(event.state.epoch + 1, event.epochs)}/{event.epochs}"
            bars.update(task, completed=event.state.step, total=event.steps, epoch=epoch)
            if event.kind == "epoch":
                bars.update(task, errors=_errors(event))
            elif event.kind == "warning":
                bars.console.print(f"warning: {event.details['message']}", markup=False)
            elif event.kind == "signal":
                bars.console.print(event.details["message"], markup=False)

        yield listen


def _lines(event: Event) -> None:
    if event.kind == "epoch":
        typer.echo(f"epoch {event.state.epoch}/{event.epochs}: {_errors(event)}", err=True)
    elif event.kind == "warning":
        typer.echo(f"warning: {event.details['message']}", err=True)
    elif event.kind == "signal":
        typer.echo(event.details["message"], err=True)


def _errors(event: Event) -> str:
    text = f"train {event.details['train']:.4f}"
    if "validation" in event.details:
        text += f"  validation {event.details['validation']:.4f}  best {event.state.best:.4f}"
    for trouble in ("skipped", "failed_factorisations"):
        if event.details[trouble]:
            text += f"  {trouble.replace('_', ' ')} {event.details[trouble]}"
    return text


def print_table(table: Table, *, fold: bool = False) -> None:
    """Print a table as wide as it has to be: a number that is cut off says nothing.

    Text can be folded to the width of a terminal.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    needed = Measurement.get(console, console.options.update(width=1000), table).maximum
    if needed > console.width and not (fold and console.is_terminal):
        console = Console(width=needed)
    console.print(table)
