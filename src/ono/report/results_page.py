"""The results page: every table of the paper beside ours, as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Protocol, runtime_checkable

import matplotlib
from matplotlib.figure import Figure

import ono
from ono.errors import InputError
from ono.files import replacing, write_text
from ono.report.page import page, paragraph, picture
from ono.report.results_charts import Curve, Panel, error_curves, function_panels
from ono.report.strips import Strip, describe, strip_figure

HTML, MARKDOWN, IMAGES = "results.html", "results.md", "images"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
TITLE = "Results beside the paper's"
LEAD = (
    "Each table of the paper with what was measured here. Below a number of ours stand that of the "
    "paper and how far ours lies from it. “–” has no result yet; an empty place is one where the "
    "operator cannot work. Errors are relative L2, a mean over the test split."
)
BOLD = "Bold is ONO, not the least error."


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
    def experiment(self) -> str:
        """What `ono reproduce` calls it."""

    @property
    def facts(self) -> Sequence[tuple[str, str]]:
        """What decided its numbers."""

    @property
    def note(self) -> str:
        """What else is to say."""

    @property
    def head(self) -> Sequence[str]:
        """The names of the columns."""

    @property
    def rows(self) -> Sequence[tuple[str, Sequence[tuple[str, str]]]]:
        """Names and entries: ours, and what stands below it. None if nothing was run."""

    @property
    def axis(self) -> str | None:
        """What the columns measure, if they are numbers."""

    @property
    def curves(self) -> Sequence[Curve]:
        """What is drawn along that axis."""

    @property
    def panels(self) -> Sequence[Panel]:
        """Functions to draw."""

    @property
    def strips(self) -> Sequence[Strip]:
        """Fields of samples to draw."""


def write_results(sheets: Sequence[Sheet], out: Path, docs: Path | None = None) -> list[Path]:
    """Write the page, the Markdown and its pictures into a directory; return what was written.

    The Markdown is also put between the two marks of the file `docs`, if there is one.
    """
    written = [out / HTML, out / MARKDOWN]
    before, after = ("", "") if docs is None else _around_marks(docs)
    try:
        write_text(out / HTML, _html(sheets))
        write_text(out / MARKDOWN, f"# {TITLE}\n\n{_markdown(sheets, out)}\n")
        if docs is not None:
            text = _markdown(sheets, docs.parent, heading="###")
            write_text(docs, f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
            written.append(docs)
    except OSError as error:
        raise InputError(
            f"cannot write the results to {error.filename or out}: {error.strerror}; choose "
            "another place with --out"
        ) from None
    return written


def _around_marks(docs: Path) -> tuple[str, str]:
    try:
        text = docs.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--docs {docs} cannot be read: {error}; give a Markdown file with {BEGIN} and {END}"
        ) from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise InputError(f"{docs} has no place for the results; put {BEGIN} and {END} where it is")
    return before, after


def _figures(sheet: Sheet) -> Iterator[tuple[str, Figure, str]]:
    """Yield the figures of a table: a name, the figure, its caption."""
    if sheet.axis is not None and any(not curve.published for curve in sheet.curves):
        band = "A band is the standard deviation over seeds. "
        seeds = band if any(any(curve.spread) for curve in sheet.curves) else ""
        marks = "Open marks are the paper's." if any(c.published for c in sheet.curves) else ""
        told = f"Error against {sheet.axis}. {seeds}{marks}".strip()
        yield "", error_curves(sheet.curves, sheet.axis), told
    if sheet.panels:
        yield "", function_panels(sheet.panels), "Learned functions, and the true ones dashed."
    for strip in sheet.strips:
        yield "-" + strip.name.replace("/", "-"), strip_figure(strip), describe(strip)


def _html(sheets: Sequence[Sheet]) -> str:
    body = [
        "<header>",
        paragraph(TITLE, "kind"),
        "<h1>Orthogonal attention, reproduced</h1>",
        paragraph(f"{LEAD} {BOLD}", "lead"),
        "</header>",
        "<main>",
    ]
    for sheet in sheets:
        if sheet.rows:
            parts = [_table(sheet), _terms(sheet.facts)]
            parts += [
                picture(figure, f"figure-{sheet.name}{name}", sheet.title, caption)
                for name, figure, caption in _figures(sheet)
            ]
            body.append(_section(sheet.title, sheet.note, *parts))
    if missing := [_missing(sheet) for sheet in sheets if not sheet.rows]:
        body.append(_section("Not run yet", "", *map(paragraph, missing)))
    body += ["</main>", f"<footer>Written by ono {ono.__version__} from the ledger.</footer>"]
    return page(TITLE, "\n".join(body))


def _section(title: str, note: str, *parts: str) -> str:
    text = [paragraph(note)] if note else []
    return "\n".join(["<section>", f"<h2>{escape(title)}</h2>", *text, *parts, "</section>"])


def _table(sheet: Sheet) -> str:
    first, *rest = map(escape, sheet.head)
    titles = "".join(f'<th scope="col" class="number">{name}</th>' for name in rest)
    lines = []
    for name, entries in sheet.rows:
        cells = "".join(_entry(*map(escape, entry)) for entry in entries)
        kind = ' class="trained"' if name == "ono" else ""
        lines.append(f'<tr{kind}><th scope="row">{escape(name)}</th>{cells}</tr>')
    return (
        '<div class="wide" tabindex="0">\n<table class="levels pairs">\n<thead><tr>'
        f'<th scope="col">{first}</th>{titles}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody>\n</table>\n</div>"
    )


def _entry(ours: str, below: str) -> str:
    kind = "number" if any(c.isdigit() for c in ours) and "epoch" not in ours else "number absent"
    small = f"<small>{below}</small>" if below else ""
    return f'<td class="{kind}">{ours}{small}</td>'


def _terms(facts: Sequence[tuple[str, str]]) -> str:
    pairs = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts
    )
    return f'<dl class="terms">{pairs}</dl>'


def _missing(sheet: Sheet) -> str:
    begun = "".join(f" ({name} {value})" for name, value in sheet.facts)
    return f"{sheet.title}: `ono reproduce {sheet.experiment}`{begun}"


def _markdown(sheets: Sequence[Sheet], out: Path, heading: str = "##") -> str:
    parts = [LEAD]
    for sheet in sheets:
        if not sheet.rows:
            continue
        told = " · ".join(f"**{name}** {value}" for name, value in sheet.facts)
        parts += [f"{heading} {sheet.title}", *([sheet.note] if sheet.note else []), told]
        rows = [sheet.head, ["---", *["---:"] * (len(sheet.head) - 1)]]
        for name, entries in sheet.rows:
            rows.append([name, *("<br>".join(filter(None, entry)) for entry in entries)])
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        for name, figure, caption in _figures(sheet):
            file = out / IMAGES / f"results-{sheet.name}{name}.svg"
            _save(figure, file)
            parts.append(f"![{caption}]({IMAGES}/{file.name})")
    if missing := [_missing(sheet) for sheet in sheets if not sheet.rows]:
        parts += [f"{heading} Not run yet", "\n".join(f"- {text}" for text in missing)]
    return "\n\n".join(parts)


def _save(figure: Figure, file: Path) -> None:
    # Without dates and with fixed ids the same ledger gives the same bytes.
    with replacing(file) as aside, matplotlib.rc_context({"svg.hashsalt": file.stem}):
        figure.savefig(aside, format="svg", metadata={"Date": None})
