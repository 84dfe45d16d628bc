"""`ono report`: one HTML file about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")],
    out: Annotated[Path | None, typer.Option(help="Default: RUN/report.html.")] = None,
    layer: Annotated[
        int | None, typer.Option(help="Whose eigenfunctions to draw; default: the middle one.")
    ] = None,
) -> None:
    """Write a self-contained report with curves, pictures and eigenfunctions."""
    from ono.cli.progress import working
    from ono.report.html import write_report
    from ono.report.words import duration
    from ono.train.run import Run

    with working("drawing"):
        path = write_report(run, out, layer=layer)
    result = Run(run).result()
    if result is not None:
        typer.echo(
            f"test error {result['test']:.4f}, trained in {duration(result['seconds'])} on "
            f"{result['device']}"
        )
    typer.echo(f"report: {path}")
