"""`ono results`: the ledger as tables and figures beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def results(
    ledger: Annotated[Path, typer.Option(help="What `ono reproduce` wrote.")] = Path(
        "results/ledger.jsonl"
    ),
    out: Annotated[
        Path | None, typer.Option(help="A directory. Default: that of the ledger.")
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(help="A Markdown file to write the tables into, between its two marks."),
    ] = None,
) -> None:
    """Write results.html and results.md from the ledger."""
    from ono.cli.progress import working
    from ono.errors import InputError

    if not ledger.is_file():
        raise InputError(
            f"no ledger at {ledger}; run `ono reproduce` first, or give another with --ledger"
        )

    from ono.experiments.ledger import Ledger
    from ono.experiments.tables import sheets
    from ono.report.results_page import write_results

    lines = Ledger(ledger).lines()
    with working("drawing"):
        found = sheets(lines, pictures=ledger.parent / "pictures")
        pages = write_results(found, out or ledger.parent, docs)
    for page in pages:
        typer.echo(f"wrote {page}")
