"""`ono bench`: what steps and predictions cost on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ono.cli.progress import print_table

if TYPE_CHECKING:
    from rich.table import Table

    from ono.experiments.inference import Inference
    from ono.experiments.speed import Comparison

app = typer.Typer(help="Measure speed and memory.", no_args_is_help=True)

_Recipes = Annotated[list[str], typer.Argument(help="Packaged recipes, as darcy/ono.")]
_Override = Annotated[
    list[str] | None, typer.Option("--set", help="Change a value of the recipes, KEY=VALUE.")
]
_Seconds = Annotated[float, typer.Option(min=0.1, help="To measure each for.")]
_Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
_Lines = Annotated[Path | None, typer.Option(help="Add the results to this JSON-lines file.")]
_Commit = Annotated[str | None, typer.Option(help="To be kept with the lines.")]


@app.command()
def speed(
    recipes: _Recipes,
    override: _Override = None,
    execution: Annotated[
        list[str] | None, typer.Option(help="eager, compiled or captured; repeatable.")
    ] = None,
    baseline: Annotated[
        bool, typer.Option(help="Measure the published form of ONO too, eager in float32.")
    ] = True,
    samples: Annotated[int, typer.Option(min=8, help="Of the stand-in data.")] = 64,
    seconds: _Seconds = 2.0,
    device: _Device = "auto",
    lines: _Lines = None,
    commit: _Commit = None,
) -> None:
    """Time whole training steps on random data with the shapes of the benchmarks.

    The floor is the least time a step could take: its products at the speed of a large product on
    this device, or its data at the speed of a large copy, whichever is longer.
    """
    from rich.table import Column, Table

    from ono.experiments.measurements import Refused, measure_steps

    table = Table(Column("recipe", no_wrap=True), Column("step", no_wrap=True), *_NUMBERS)
    _refuse_before_work(recipes, lines)
    for row in measure_steps(
        recipes,
        override or [],
        execution or ["auto"],
        baseline=baseline,
        samples=samples,
        seconds=seconds,
        device=device,
    ):
        if isinstance(row, Refused):
            typer.echo(str(row), err=True)
            continue
        table.add_row(*_speed_cells(row))
        _keep(row.line(), lines, device, commit)
    _print(table)


def _refuse_before_work(recipes: list[str], lines: Path | None) -> None:
    """Refuse what would end a call when some of it is measured, and lose that."""
    from ono.data.benchmarks import benchmark
    from ono.errors import InputError

    for recipe in recipes:
        benchmark(recipe.partition("/")[0])
    if lines is not None and (lines.is_dir() or not lines.parent.is_dir()):
        raise InputError(f"cannot write to {lines}: give --lines a file in a directory that exists")


_NUMBERS = (
    "batch",
    "ms/step",
    "samples/s",
    "floor ms",
    "% of floor",
    "× paper form, eager",
    "peak GiB",
    "first s",
)


def _speed_cells(row: Comparison) -> list[str]:
    speed = row.speed
    return [
        speed.recipe,
        f"{speed.form} {speed.precision}" + (" fused" if speed.kernels == "fused" else ""),
        str(speed.batch),
        f"{speed.milliseconds:.2f}",
        f"{speed.samples_per_second:.0f}",
        f"{row.floor_milliseconds:.3g}",
        f"{100 * row.share:.3g}",
        "" if row.speedup is None else f"{row.speedup:.2f}",
        "" if speed.peak_bytes is None else f"{speed.peak_bytes / 2**30:.2f}",
        f"{speed.first_seconds:.1f}",
    ]


@app.command()
def inference(
    recipes: _Recipes,
    override: _Override = None,
    points: Annotated[
        list[int] | None, typer.Option(min=4, help="Of a sample; repeatable. Default: 1e3 to 1e6.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Samples a call; repeatable. Default: 1 and 32.")
    ] = None,
    chunk: Annotated[int | None, typer.Option(min=1, help="Points at a time, if many.")] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Replay each call as a CUDA graph (needs a GPU).")
    ] = False,
    seconds: _Seconds = 2.0,
    device: _Device = "auto",
    lines: _Lines = None,
    commit: _Commit = None,
) -> None:
    """Time evaluations of folded operators, one sample and many, up to millions of points.

    Where a batch would have more points than the largest sample asked for, it is left out.
    """
    from dataclasses import asdict

    from rich.table import Table

    from ono.device import choose_device
    from ono.errors import InputError
    from ono.experiments.measurements import Refused, measure_calls
    from ono.train.recipe import Recipe

    if recorded and (chunk is not None or choose_device(device) == "cpu"):
        raise InputError("--recorded needs a GPU and takes all points at once, without --chunk")
    table = Table("recipe", "call", "points", "batch", "chunk", "ms/call", "points/s", "peak GiB")
    _refuse_before_work(recipes, lines)
    for recipe in recipes:
        Recipe.load(recipe, override or [])
    for row in measure_calls(
        recipes,
        override or [],
        _calls(points or [1_000, 10_000, 100_000, 1_000_000], batch),
        chunk=chunk,
        recorded=recorded,
        seconds=seconds,
        device=device,
    ):
        if isinstance(row, Refused):
            typer.echo(str(row), err=True)
            continue
        table.add_row(*_call_cells(row))
        _keep(asdict(row), lines, device, commit)
    _print(table)


def _calls(sizes: list[int], batches: list[int] | None) -> list[tuple[int, int]]:
    """Return how many samples of how many points to call with; say what was asked in vain."""
    calls = [(batch, size) for batch in batches or [1, 32] for size in sizes]
    fit = [(batch, size) for batch, size in calls if batch == 1 or batch * size <= max(sizes)]
    for batch, size in calls if batches else ():
        if (batch, size) not in fit:
            typer.echo(
                f"{batch} samples of {size} points are left out, more than the largest sample; "
                f"add --points {batch * size} to have them",
                err=True,
            )
    return fit


def _call_cells(row: Inference) -> list[str]:
    return [
        row.recipe,
        row.form,
        f"{row.points:,}",
        str(row.batch),
        "" if row.chunk is None else f"{row.chunk:,}",
        f"{row.milliseconds:.2f}",
        f"{row.points_per_second:,.0f}",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 2**30:.2f}",
    ]


def _keep(line: dict[str, Any], lines: Path | None, device: str, commit: str | None) -> None:
    """Add what was measured to the file that was asked for."""
    from ono.device import choose_device, describe_device

    if lines is None:
        return
    told = line | {"device": describe_device(choose_device(device))}
    with lines.open("a") as file:
        file.write(json.dumps(told if commit is None else told | {"commit": commit}) + "\n")


def _print(table: Table) -> None:
    if not table.rows:  # everything was refused, and it was said why
        raise typer.Exit(2)
    print_table(table)
