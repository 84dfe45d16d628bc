"""`ono resume`: continue a run as if it had never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def resume(
    run: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")],
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="A certain checkpoint instead of the newest. Later ones, metrics, result and "
            "evaluations stay until the first new checkpoint is saved; then they are dropped.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where the dataset of the run is now, if it was moved.")
    ] = None,
) -> None:
    """Continue a run from its newest whole checkpoint."""
    from ono.train.run import Run

    recipe = Run(run).recipe()

    from ono.cli.progress import training
    from ono.cli.train import extra_listeners, show_result
    from ono.train.loop import resume as continue_run

    with training() as listener:
        listeners = [listener, *extra_listeners(recipe, run)]
        result = continue_run(run, listeners, checkpoint, data=data)
    show_result(result)
