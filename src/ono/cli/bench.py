"""`ono bench`: what steps and predictions cost on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Measure speed and memory.", no_args_is_help=True)


@app.command()
def speed(
    recipes: Annotated[list[str], typer.Argument(help="Packaged recipes, as darcy/ono.")],
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value of the recipes, KEY=VALUE.")
    ] = None,
    execution: Annotated[
        list[str] | None, typer.Option(help="eager, compiled or captured; repeatable.")
    ] = None,
    samples: Annotated[int, typer.Option(min=8, help="Of the stand-in data.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, help="To measure each for.")] = 2.0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    lines: Annotated[
        Path | None, typer.Option(help="Add the results to this JSON-lines file.")
    ] = None,
) -> None:
    """Time whole training steps on random data with the shapes of the benchmarks."""
    import tempfile
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from ono.device import choose_device, describe_device
    from ono.errors import OnoError
    from ono.experiments.speed import step_speed
    from ono.experiments.stand_in import stand_in

    table = Table(
        "recipe", "execution", "batch", "parameters", "ms/step", "samples/s", "peak GiB", "first s"
    )
    with tempfile.TemporaryDirectory() as folder:
        for recipe in recipes:
            name = recipe.partition("/")[0]
            data = Path(folder) / name
            if not data.exists():
                stand_in(name, data, samples=samples)
            for form in execution or ["auto"]:
                changes = [*(override or []), f"train.execution={form}"]
                try:
                    row = step_speed(recipe, data, changes, device=device, seconds=seconds)
                except OnoError as error:
                    typer.echo(f"{recipe}: {error}", err=True)
                    continue
                peak = "" if row.peak_bytes is None else f"{row.peak_bytes / 2**30:.2f}"
                table.add_row(
                    row.recipe,
                    row.form,
                    str(row.batch),
                    f"{row.parameters:,}",
                    f"{row.milliseconds:.2f}",
                    f"{row.samples_per_second:.0f}",
                    peak,
                    f"{row.first_seconds:.1f}",
                )
                if lines is not None:
                    with lines.open("a") as file:
                        told = describe_device(choose_device(device))
                        file.write(
                            json.dumps({**asdict(row), "device": told, "set": changes}) + "\n"
                        )
    Console().print(table)
