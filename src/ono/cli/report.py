"""`ono report`: a run, or the paper's experiments, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LEDGER = "ledger.jsonl"


def report(
    subject: Annotated[
        Path,
        typer.Argument(
            help="A run directory, or the directory of the ledger that `ono reproduce` wrote.",
            metavar="RUN|RESULTS",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Of a run a file, of results a directory. Default: in RUN or RESULTS."),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(help="Of a run: whose eigenfunctions to draw. Default: the middle layer's."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Of a run: where its dataset is now, if it was moved.")
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(help="Of results: a Markdown file to write the tables into as well."),
    ] = None,
) -> None:
    """Write a self-contained page about a run, or about all results beside the paper's."""
    from ono.errors import InputError

    ledger = subject if subject.is_file() else subject / LEDGER
    if ledger.is_file():
        if layer is not None:
            raise InputError(f"--layer is for a run, and {subject} holds the results of many")
        if data is not None:
            raise InputError(f"--data is for a run, and {subject} holds the results of many")
        return _results(ledger, out, docs)
    if not (subject / "recipe.yaml").is_file():
        raise InputError(
            f"nothing to report at {subject}: a run comes from `ono train`, a {LEDGER} from "
            "`ono reproduce`"
        )
    if docs is not None:
        raise InputError(f"--docs is for results, and {subject} is a run")
    return _run(subject, out, layer, data)


def _run(run: Path, out: Path | None, layer: int | None, data: Path | None) -> None:
    from ono.cli.progress import working
    from ono.errors import InputError
    from ono.report.html import write_report
    from ono.report.words import duration
    from ono.train.run import Run

    if out is not None and out.exists() and out.suffix.lower() not in (".html", ".htm"):
        raise InputError(
            f"{out} exists and is no .html file: the report would replace it; end --out in .html"
        )
    with working("drawing"):
        path = write_report(run, out, layer=layer, data=data)
    result = Run(run).result()
    if result is not None:
        typer.echo(
            f"test error {result['test']:.4f}, trained in {duration(result['seconds'])} on "
            f"{result['device']}"
        )
    typer.echo(f"report: {path}")


def _results(ledger: Path, out: Path | None, docs: Path | None) -> None:
    from ono.cli.progress import working
    from ono.errors import InputError
    from ono.experiments.ledger import Ledger
    from ono.experiments.tables import sheets
    from ono.report.results_page import write_results

    lines = Ledger(ledger).lines()
    if not lines:
        raise InputError(f"{ledger} holds no results of `ono reproduce`")
    with working("drawing"):
        found = sheets(lines, pictures=ledger.parent / "pictures")
        pages = write_results(found, out or ledger.parent, docs)
    for page in pages:
        typer.echo(f"wrote {page}")
