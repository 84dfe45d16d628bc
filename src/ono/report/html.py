"""The report of a run: one HTML file that needs nothing but a browser."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

import ono
from ono.errors import InputError
from ono.files import write_text
from ono.report import sections
from ono.report.evidence import Evidence, Outcome, gather
from ono.report.page import number, page, paragraph, tiles
from ono.report.words import duration

_CHANGED = (
    "The recipe of this run was changed after it ended. Errors, seed and hashes are of the recipe "
    "that was trained; everything else this page says of a recipe is of the changed one."
)


def write_report(
    run: Path, out: Path | None = None, *, layer: int | None = None, data: Path | None = None
) -> Path:
    """Write the report of a run, finished or not; return where it is.

    `layer`, counted from zero, chooses whose eigenfunctions are drawn; the middle one if not given.
    `data` is where the dataset was moved to since the run.
    """
    out = run / "report.html" if out is None else out
    found = gather(run, layer, data)
    body = [
        header(found),
        "<main>",
        sections.training(found),
        sections.errors(found),
        sections.samples(found),
        sections.frames(found),
        sections.resolutions(found),
        sections.eigenfunctions(found),
        sections.health(found),
        sections.origin(found),
        "</main>",
        f"<footer>Written by ono {ono.__version__}. This page fetches nothing.</footer>",
    ]
    text = page(f"{title(found)}: training report", "\n".join(part for part in body if part))
    try:
        write_text(out, text)
    except OSError as error:
        raise InputError(
            f"cannot write the report to {out}: {error.strerror}; choose another place with --out"
        ) from None
    return out


def title(found: Evidence) -> str:
    """Name the benchmark and the model."""
    model = found.recipe.model.name
    if found.parts is None:
        return found.recipe.name
    return f"{found.parts.test.dataset.info.name} / {model}"


def header(found: Evidence) -> str:
    """Return the title, what was learned from what, and the headline numbers."""
    pieces = [
        "<header>",
        paragraph(f"Training report, recipe {found.recipe.name}", "kind"),
        f"<h1>{escape(title(found))}</h1>",
        paragraph(lead(found), "lead"),
        unfinished(found) if found.outcome is None else headline(found, found.outcome),
        paragraph(f"Without pictures: {found.missing}", "note") if found.missing else "",
        paragraph(_CHANGED, "note") if found.recipe_sha256 != found.recipe.sha256 else "",
        "</header>",
    ]
    return "\n".join(piece for piece in pieces if piece)


def lead(found: Evidence) -> str:
    """Say in two sentences what the operator does and what it learned from."""
    model, parts = found.recipe.model.name, found.parts
    if parts is None:
        return f"The {model} operator. Its dataset cannot be opened."
    info, window = parts.train.dataset.info, parts.test.window
    names = ", ".join(channel.name for channel in (*info.inputs, *info.params)) or "the geometry"
    made = ", ".join(channel.name for channel in parts.train.outputs)
    if window is not None:
        names, made = f"{window.history} frames of {made}", f"the next {window.steps}"
    elif parts.test.times is not None:
        made = f"{made} at {len(parts.test.times)} times"
    kind = {"grid": "grid", "structured": "structured mesh", "cloud": "cloud"}[info.mesh.kind]
    where = sections.size(parts.train.shape) or f"{parts.train.points:,}"
    return (
        f"The {model} operator maps {names} to {made} on a {kind} of {where} points. "
        f"It learned from {len(parts.train)} samples; {len(parts.validation)} more chose the "
        f"checkpoint, and {len(parts.test)} were kept for the test."
    )


def headline(found: Evidence, outcome: Outcome) -> str:
    """Return the numbers of a finished run."""
    memory = outcome.peak_memory_bytes
    used = "" if memory is None else f", peak memory {memory / 2**30:.2f} GiB"
    spread = f"mean over {len(outcome.test_errors)} test samples, evaluated once"
    return tiles(
        ("Test error, relative L2", number(outcome.test), spread),
        [
            ("Validation error", number(outcome.validation), "chose the checkpoint"),
            ("Best epoch", f"{outcome.epoch} of {found.recipe.train.epochs}", outcome.checkpoint),
            ("Parameters", f"{outcome.parameters:,}", f"model {found.recipe.model.name}"),
            ("Training time", duration(outcome.seconds), f"{outcome.device}{used}"),
        ],
    )


def unfinished(found: Evidence) -> str:
    """Say how far a run has come that has no result yet."""
    epochs = found.recipe.train.epochs
    done = int(found.metrics[-1]["epoch"]) if found.metrics else 0
    note = paragraph(
        f"This run is not finished: {done} of {epochs} epochs are done, and the test split has not "
        "been evaluated. Continue it with `ono resume RUN`.",
        "note",
    )
    known = [m for m in found.metrics if math.isfinite(m.get("validation", math.nan))]
    if not known:
        return note
    best = min(known, key=lambda line: float(line["validation"]))
    return note + tiles(
        ("Validation error, relative L2", number(best["validation"]), "the lowest so far"),
        [("Best epoch", f"{best['epoch']} of {epochs}", ""), ("Epochs done", str(done), "")],
    )
