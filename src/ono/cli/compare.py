"""`ono data compare`: two datasets side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ono.data.compare import Row


def compare(
    a: Annotated[Path, typer.Argument(help="A dataset directory.", metavar="A")],
    b: Annotated[Path, typer.Argument(help="Another one.", metavar="B")],
) -> None:
    """Compare two datasets field by field, such as a made one with the published one."""
    from rich.console import Console

    from ono.cli.progress import working
    from ono.data.compare import compare as compare_datasets
    from ono.data.store import Dataset

    first, second = Dataset.open(a), Dataset.open(b)
    with working("comparing"):
        found = compare_datasets(first, second)
    console = Console()
    for name, rows in found.fields.items():
        console.print(_table(name, rows))
    if found.marks:
        console.print(_table(f"marks of {first.info.name}", found.marks))
    for path, names in ((a, found.only_a), (b, found.only_b)):
        if names:
            typer.echo(f"only in {path}: {', '.join(names)}")


def _table(title: str, rows: list[Row]) -> Table:
    from rich.table import Table

    table = Table("", "A", "B", "B / A", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        numbers = ("" if math.isnan(x) else f"{x:.4g}" for x in (row.a, row.b, row.ratio))
        table.add_row(row.quantity, *numbers)
    return table
