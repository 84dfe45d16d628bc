"""The elements of a report's page. Text goes in plain and comes out escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from matplotlib.figure import Figure

from ono.report.svg import inline_svg


def page(title: str, body: str) -> str:
    """Return a whole page. Its policy forbids the browser to fetch anything."""
    style = (files("ono") / "report" / "style.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def section(title: str, text: str, *parts: str) -> str:
    """Return a section with a heading and a sentence; `parts` are markup."""
    inner = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{paragraph(text)}\n{inner}\n</section>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph; `like this` becomes code."""
    pieces = escape(text, quote=False).split("`")
    if len(pieces) % 2 == 0:  # a backtick without its fellow is just a backtick
        pieces[-2:] = ["`".join(pieces[-2:])]
    marked = "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(pieces))
    return f'<p class="{kind}">{marked}</p>' if kind else f"<p>{marked}</p>"


def picture(
    figure: Figure, name: str, description: str, caption: str, *, narrow: Figure | None = None
) -> str:
    """Return a figure with its caption, and a description for those who cannot see it.

    A phone shows `narrow` instead if there is one, else it scrolls sideways.
    """
    svg = inline_svg(figure, name, description)
    if narrow is None:
        inner = f'<div class="wide" tabindex="0">{svg}</div>'
    else:
        other = inline_svg(narrow, f"{name}-narrow", description)
        inner = f'<div class="on-desk">{svg}</div>\n<div class="on-phone">{other}</div>'
    return f"<figure>\n{inner}\n<figcaption>{escape(caption, quote=False)}</figcaption>\n</figure>"


def tiles(main: tuple[str, str, str], others: Iterable[tuple[str, str, str]]) -> str:
    """Return the headline numbers: name, value, and a remark below each."""

    def tile(entry: tuple[str, str, str], kind: str = "") -> str:
        name, value, remark = map(escape, entry)
        small = f"<small>{remark}</small>" if remark else ""
        return f"<div{kind}><dt>{name}</dt><dd>{value}{small}</dd></div>"

    large = tile(main, ' class="main"')
    return f'<dl class="tiles">{large}{"".join(tile(entry) for entry in others)}</dl>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values."""
    lines = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table>\n<tbody>\n{lines}\n</tbody>\n</table>"


def numbers(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, marked: int | None = None
) -> str:
    """Return a table of numbers with a heading for each column, one line in bold."""
    first, *rest = map(escape, head)
    titles = "".join(f'<th scope="col" class="number">{name}</th>' for name in rest)
    lines = []
    for index, row in enumerate(rows):
        name, *values = map(escape, row)
        cells = "".join(f'<td class="number">{value}</td>' for value in values)
        kind = ' class="trained"' if index == marked else ""
        lines.append(f'<tr{kind}><th scope="row">{name}</th>{cells}</tr>')
    return (
        f'<div class="wide" tabindex="0">\n<table class="levels">\n<thead><tr>'
        f'<th scope="col">{first}</th>{titles}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody>\n</table>\n</div>"
    )


def folded(title: str, text: str) -> str:
    """Return long text that opens on demand."""
    return f"<details>\n<summary>{escape(title)}</summary>\n<pre>{escape(text)}</pre>\n</details>"


def number(value: float) -> str:
    """Write an error with four digits.

    >>> number(0.1360847), number(0.00071239), number(float("nan"))
    ('0.1361', '0.0007124', 'not finite')
    """
    return f"{value:#.4g}" if math.isfinite(value) else "not finite"
