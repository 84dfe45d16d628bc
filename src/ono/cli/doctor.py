"""`ono doctor`: what this machine has, and whether it computes rightly."""

from __future__ import annotations

import typer

from ono.cli.progress import print_table


def doctor() -> None:
    """Check the installation: versions, devices, numerics, disk."""
    from rich.markup import escape
    from rich.table import Table

    from ono.train.diagnosis import diagnose

    table = Table("check", "found", "", title="ono doctor")
    findings = diagnose()
    for finding in findings:
        mark = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "bad": "[red]bad[/]"}
        table.add_row(finding.what, escape(finding.found), mark[finding.verdict])
    print_table(table)
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)
