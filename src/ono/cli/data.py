"""Make, look at and check datasets."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from ono.cli.compare import compare
from ono.cli.data_import import import_data
from ono.cli.options import refuse_no_picture
from ono.cli.progress import print_table
from ono.errors import DataError

app = typer.Typer(help="Make, look at and check datasets.", no_args_is_help=True)

app.command("import")(import_data)
app.command()(compare)

Directory = Annotated[Path, typer.Argument(help="A dataset directory.", metavar="DIR")]


@app.command("list")
def list_benchmarks() -> None:
    """List the benchmarks that can be made, with their sizes."""
    from rich.table import Table

    from ono.data.benchmarks import BENCHMARKS

    for benchmark in BENCHMARKS.values():
        table = Table(
            "size",
            "train / validation / test",
            "note",
            title=f"{benchmark.name}: {benchmark.title}",
        )
        for name, size in benchmark.sizes.items():
            counts = " / ".join(str(count) for count in size.splits.values())
            table.add_row(name, counts, size.note)
        print_table(table)


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="A benchmark, see `ono data list`.")],
    samples: Annotated[int | None, typer.Option(help="How many samples in all splits.")] = None,
    size: Annotated[str, typer.Option(help="quick or full.")] = "quick",
    seed: Annotated[int, typer.Option(help="Decides every random draw.")] = 0,
    device: Annotated[str, typer.Option(help="Where to solve: cpu, cuda or auto.")] = "auto",
    batch: Annotated[int | None, typer.Option(help="Samples solved together.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: data/NAME-SIZE.")] = None,
    geometry: Annotated[
        Path | None,
        typer.Option(help="Published shapes to solve for instead of random ones (elasticity)."),
    ] = None,
) -> None:
    """Make a benchmark's data from physics, or continue where an interrupted run stopped."""
    from ono.cli.progress import counting
    from ono.data.benchmarks import benchmark
    from ono.data.generate import make as make_dataset
    from ono.data.geometry import with_geometry
    from ono.data.store import INFO_FILE

    maker = benchmark(name)
    if geometry is not None:
        maker, name = with_geometry(maker, geometry), f"{name}-published"
    out = Path("data") / f"{name}-{size}" if out is None else out
    known = (out / INFO_FILE).exists()
    with counting(f"making {name}") as progress:
        dataset = make_dataset(
            maker,
            out,
            size=size,
            samples=samples,
            seed=seed,
            device=device,
            batch=batch,
            progress=progress,
        )
    report = dataset.info.report
    redrawn = sum(attempt > 0 for attempt in report.attempt) if report else 0
    typer.echo(
        f"{'already made' if known else 'made'} {out}: {dataset.info.samples} samples, "
        f"{redrawn} redrawn, sha256 {dataset.sha256[:12]}"
    )


@app.command()
def show(
    path: Directory,
    out: Annotated[Path | None, typer.Option(help="Default: DIR/gallery.png.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many samples to draw.")] = 4,
    output: Annotated[
        list[str] | None, typer.Option(help="Draw this output channel (repeatable).")
    ] = None,
) -> None:
    """Summarise a dataset and draw some of its samples."""
    from rich.markup import escape
    from rich.table import Table

    from ono.data.store import Dataset, explain_os_errors
    from ono.data.task import output_places
    from ono.files import replacing

    refuse_no_picture("out", out)
    dataset = Dataset.open(path)
    outputs = output_places(dataset, tuple(output) if output else None)
    table = Table(show_header=False, title=f"{dataset.info.name} ({dataset.info.task})")
    for key, value in dataset.summary().items():
        table.add_row(key, escape(value))
    print_table(table)
    split = "test" if "test" in dataset.info.splits else next(iter(dataset.info.splits))
    rows = dataset.rows(split)[:samples]

    from ono.report.figures import gallery

    figure = gallery(dataset, rows, outputs)
    out = path / "gallery.png" if out is None else out
    with explain_os_errors(out), replacing(out) as aside:
        figure.savefig(aside, format="png")
    typer.echo(f"drew {len(rows)} samples in {out}")


@app.command()
def check(
    path: Directory,
    verify: Annotated[bool, typer.Option("--verify", help="Recompute the hashes too.")] = False,
) -> None:
    """Look for defects; leave with code 2 if one of them forbids training."""
    from ono.data.check import check as find
    from ono.data.sources import Sources
    from ono.data.store import Dataset

    dataset = Dataset.open(path, verify=verify, strict=False)
    findings = find(dataset)
    files: list[str] = []
    with contextlib.suppress(DataError):  # that they are damaged is one of the findings
        sources = Sources.read(path)
        if sources is not None and len(sources.rows) == dataset.info.samples:
            files = sources.files
    for finding in findings:
        typer.echo(finding.told(files))
    fatal = sum(finding.severity == "fatal" for finding in findings)
    typer.echo(f"{path}: {fatal} fatal, {len(findings) - fatal} to note")
    if fatal:
        raise typer.Exit(2)
