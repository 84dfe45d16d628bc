"""`ono eval`: errors on the training grid, on other grids and at scattered points."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ono.cli.progress import print_table


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")],
    resolution: Annotated[
        list[int] | None,
        typer.Option("--resolution", "-r", min=2, help="Nodes along the first axis; repeatable."),
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="Points to evaluate at, one a row, FILE[:KEY].")
    ] = None,
    scattered: Annotated[
        int | None, typer.Option(min=1, help="Evaluate at so many random points.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="train, validation or test. Default: test, of a finished run."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where the dataset of the run is now, if it was moved.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Evaluate the best checkpoint of a run and add the errors to its evaluations."""
    from rich.table import Table

    from ono.cli.progress import working
    from ono.data.array_files import parse_source, read_array
    from ono.data.task import stride_for
    from ono.evaluate.given import as_queries
    from ono.evaluate.predict import scattered_points
    from ono.train.evaluations import Evaluator

    points = None if query is None else read_array(*parse_source(query))
    evaluator = Evaluator(run, split=split, device=device, data=data)
    wanted: list[int | None] = list(resolution or [])
    if not wanted and points is None and scattered is None:
        wanted = [None]
    for nodes in wanted:
        stride_for(evaluator.view.dataset, nodes)  # refuses a wrong one before work is done
    if points is not None:
        as_queries(evaluator.operator, points)
    rows = []
    for nodes in wanted:
        with working(f"evaluating at {nodes or 'the training'} resolution"):
            rows.append(evaluator.on_grid(nodes))
    clouds = {} if points is None else {str(query): points}
    if scattered is not None:
        clouds["random"] = scattered_points(evaluator.operator, scattered).numpy()
    for source, cloud in clouds.items():
        with working(f"evaluating at {len(cloud)} points"):
            rows.append(evaluator.at_points(cloud, source))
    table = Table(
        "where", "points", "mean", "median", "worst", "seconds", title=f"{evaluator.split} error"
    )
    for row in rows:
        where = "scattered queries" if row.kind == "query" else "point cloud"
        if row.source not in ("", "random"):
            where = f"queries of {row.source}"
        if row.resolution is not None:
            where = "x".join(map(str, row.resolution))
        table.add_row(
            where,
            str(row.points),
            f"{row.mean:.4f}",
            f"{row.median:.4f}",
            f"{row.worst:.4f}",
            f"{row.seconds:.1f}",
        )
    print_table(table)
