"""The results page: every table of the paper beside ours, as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import matplotlib
from matplotlib.figure import Figure

import ono
from ono.errors import InputError
from ono.files import replacing, write_text
from ono.report.page import numbers, page, paragraph, picture, section
from ono.report.results_charts import Curve, Panel, error_curves, function_panels

HTML, MARKDOWN, IMAGES = "results.html", "results.md", "images"
LEAD = (
    "Each table of the paper with what was measured here. Under a row of ours stand the number of "
    "the paper and how far ours lies from it; “-” is a place that was not run, or that the paper "
    "does not print. Errors are relative L2, a mean over the test split."
)


@runtime_checkable
class Sheet(Protocol):
    """A table whose entries are text, and what is drawn below it."""

    @property
    def name(self) -> str:
        """A word for files and anchors."""

    @property
    def title(self) -> str:
        """What the table is about."""

    @property
    def caption(self) -> str:
        """What decided its numbers."""

    @property
    def head(self) -> Sequence[str]:
        """The names of the columns."""

    @property
    def rows(self) -> Sequence[Sequence[str]]:
        """The entries, each row with its name first."""

    @property
    def axis(self) -> str | None:
        """What the columns measure, if they are numbers."""

    @property
    def curves(self) -> Sequence[Curve]:
        """What is drawn along that axis."""

    @property
    def panels(self) -> Sequence[Panel]:
        """Functions to draw."""


def write_results(sheets: Sequence[Sheet], out: Path) -> list[Path]:
    """Write the page, the Markdown and its pictures into a directory; return the two pages."""
    try:
        write_text(out / HTML, _html(sheets))
        write_text(out / MARKDOWN, _markdown(sheets, out))
    except OSError as error:
        raise InputError(
            f"cannot write the results to {out}: {error.strerror}; choose another place with --out"
        ) from None
    return [out / HTML, out / MARKDOWN]


def _figure(sheet: Sheet) -> tuple[Figure, str] | None:
    """Return the figure of a table and its caption, if there is something to draw."""
    if sheet.axis is not None and any(not curve.published for curve in sheet.curves):
        seeds = "a band is the standard deviation over seeds; " if _has_spread(sheet) else ""
        caption = f"Error against {sheet.axis}; {seeds}open marks are the paper's."
        return error_curves(sheet.curves, sheet.axis), caption
    if sheet.panels:
        return function_panels(sheet.panels), "Learned functions, and the true ones dashed."
    return None


def _has_spread(sheet: Sheet) -> bool:
    return any(any(curve.spread) for curve in sheet.curves)


def _html(sheets: Sequence[Sheet]) -> str:
    body = [
        "<header>",
        paragraph("Results beside the paper's", "kind"),
        "<h1>Orthogonal attention, reproduced</h1>",
        paragraph(LEAD, "lead"),
        "</header>",
        "<main>",
    ]
    for index, sheet in enumerate(sheets):
        parts = [numbers(sheet.head, sheet.rows)]
        if (drawn := _figure(sheet)) is not None:
            figure, caption = drawn
            parts.append(picture(figure, f"figure{index}", sheet.title, caption))
        body.append(section(sheet.title, sheet.caption, *parts))
    body += ["</main>", f"<footer>Written by ono {ono.__version__} from the ledger.</footer>"]
    return page("Results beside the paper's", "\n".join(body))


def _markdown(sheets: Sequence[Sheet], out: Path) -> str:
    parts = ["# Results beside the paper's", LEAD]
    for sheet in sheets:
        rows = [sheet.head, ["---", *["---:"] * (len(sheet.head) - 1)], *sheet.rows]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts += [f"## {sheet.title}", sheet.caption, table]
        if (drawn := _figure(sheet)) is not None:
            figure, caption = drawn
            file = out / IMAGES / f"{sheet.name}.svg"
            _save(figure, file)
            parts.append(f"![{caption}]({IMAGES}/{file.name})")
    return "\n\n".join(parts) + "\n"


def _save(figure: Figure, file: Path) -> None:
    # Without dates and with fixed ids the same ledger gives the same bytes.
    with replacing(file) as aside, matplotlib.rc_context({"svg.hashsalt": file.stem}):
        figure.savefig(aside, format="svg", metadata={"Date": None})
