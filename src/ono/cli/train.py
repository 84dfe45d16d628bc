"""`ono train`: from a recipe to a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ono.cli.options import RecipeSource

if TYPE_CHECKING:
    from ono.train.recipe import Recipe
    from ono.train.state import Listener, Result


def train(
    recipe: RecipeSource,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes, as key=value: train.epochs=10")
    ] = None,
    more: Annotated[
        list[str] | None, typer.Option("--set", help="A change too, as for `ono bench`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory. Default: runs/NAME-SEED.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe and stop.")
    ] = False,
) -> None:
    """Train an operator from a recipe, or on a dataset with a recipe derived from it."""
    from ono.train.recipe import Recipe
    from ono.train.recipe_files import is_dataset

    changes = [*(overrides or []), *(more or [])]
    chosen = Recipe.load(recipe, changes, small=is_dataset(recipe) and _is_cpu(changes))
    if dry_run:
        typer.echo(chosen.to_yaml(), nl=False)
        return
    _refuse_missing_data(chosen)

    from ono.cli.progress import training
    from ono.train.loop import fit

    path = out or Path("runs") / f"{chosen.name.replace('/', '-')}-{chosen.seed}"
    with training() as listener:
        result = fit(chosen, path, [listener, *extra_listeners(chosen, path)])
    show_result(result)


def _is_cpu(overrides: list[str]) -> bool:
    """Say whether training will run on a CPU, for which a derived recipe is smaller."""
    from ono.device import choose_device

    wanted = [o.partition("=")[2] for o in overrides if o.startswith("train.device=")]
    return choose_device(wanted[-1] if wanted else "auto") == "cpu"


def _refuse_missing_data(recipe: Recipe) -> None:
    """Answer in a blink when the data is not there, before torch is loaded."""
    from ono.data.store import Dataset
    from ono.errors import DataError

    try:
        Dataset.open(recipe.data.path)
    except DataError as error:
        raise DataError(f"{error} (data.path of the recipe)") from None


def extra_listeners(recipe: Recipe, path: Path) -> list[Listener]:
    """Return what the recipe wants to be told besides the progress bar."""
    if not recipe.train.tensorboard:
        return []
    from ono.train.tensorboard import tensorboard_listener

    return [tensorboard_listener(path)]


def show_result(result: Result) -> None:
    """Print how a run ended."""
    from ono.report.words import duration
    from ono.train.run import Run

    typer.echo(
        f"test error {result.test:.4f} (validation {result.validation:.4f}, epoch {result.epoch}), "
        f"trained in {duration(result.seconds)}, run {result.path}"
    )
    channels = (Run(result.path).result() or {}).get("test_by_channel", {})
    if len(channels) > 1:
        typer.echo("  ".join(f"{name} {error:.4f}" for name, error in channels.items()))
