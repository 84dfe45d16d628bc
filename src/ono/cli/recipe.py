"""`ono recipe`: which recipes there are, and what can be changed in one."""

from __future__ import annotations

from typing import Annotated

import typer

from ono.cli.options import RecipeSource
from ono.cli.progress import print_table

app = typer.Typer(help="Look at recipes.", no_args_is_help=True)


@app.command("list")
def list_recipes(
    benchmark: Annotated[str | None, typer.Argument(help="Only those of this benchmark.")] = None,
) -> None:
    """Print the names of the packaged recipes."""
    from ono.errors import InputError, nearest
    from ono.train.recipe_files import packaged_recipes

    names = packaged_recipes()
    known = sorted({name.partition("/")[0] for name in names})
    if benchmark is not None and benchmark not in known:
        raise InputError(f"no benchmark is called {benchmark!r}; {nearest(benchmark, known)}")
    for name in names:
        if benchmark in (None, name.partition("/")[0]):
            typer.echo(name)


@app.command("show")
def show(
    recipe: RecipeSource,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes, as key=value: model.name=fno")
    ] = None,
) -> None:
    """Print every field of a recipe: the name that changes it, its value, what it means."""
    from rich.table import Table

    from ono.train.recipe import Recipe
    from ono.train.recipe_options import options

    chosen = Recipe.load(recipe, overrides or [])
    table = Table("field", "value", "meaning", title=chosen.name, title_justify="left")
    for option in options(chosen):
        value = "" if option.value is None else str(option.value)
        told = " | ".join(option.choices)
        table.add_row(option.name, value, f"{told}. {option.meaning}" if told else option.meaning)
    print_table(table, fold=True)
