"""The entry of `ono`: gathers the verbs, turns errors into one message and an exit code."""

from __future__ import annotations

import os
import signal
import sys

import typer

from ono.cli import (
    bench,
    data,
    doctor,
    evaluate,
    predict,
    recipe,
    report,
    reproduce,
    resume,
    train,
)

app = typer.Typer(
    name="ono",
    help="Learn solution operators of PDEs with orthogonal attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(recipe.app, name="recipe")
app.command("train")(train.train)
app.command("resume")(resume.resume)
app.command("eval")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce)
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> bool:
    if wanted:
        from ono import __version__

        typer.echo(__version__)
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Learn solution operators of PDEs with orthogonal attention."""


def main() -> None:
    """Run a command; an error a user can cause becomes one message and an exit code."""
    from ono.device import keep_freed_memory, shortage
    from ono.errors import Interrupted, OnoError

    keep_freed_memory()
    try:
        app()
    except Interrupted as error:
        typer.echo(str(error), err=True)
        sys.exit(128 + error.signal_number)
    except OnoError as error:
        typer.secho("error: ", fg="red", err=True, nl=False)
        typer.echo(str(error), err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except (MemoryError, RuntimeError) as error:
        if (reason := shortage(error)) is None:
            raise
        typer.secho("error: ", fg="red", err=True, nl=False)
        typer.echo(
            f"memory ran out ({reason}); ask for less at a time or free some, then run the same "
            "command again; a run that was begun goes on with `ono resume`",
            err=True,
        )
        sys.exit(1)
    except OSError as error:
        typer.secho("error: ", fg="red", err=True, nl=False)
        typer.echo(f"{error.strerror or error}: {error.filename or 'input or output'}", err=True)
        sys.exit(1)
