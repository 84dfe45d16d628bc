"""Put a figure into a page as SVG that takes the page's colours and letters."""

from __future__ import annotations

import io
import re
from html import escape

import matplotlib
from matplotlib.figure import Figure

from ono.report.fields import FIRST, INK, MUTED, RULE, SECOND

VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
}
"""Colours that the page's style sheet decides, so that they suit light and dark."""

_PIXELS_AN_INCH = 100
_RASTER_DPI = 220


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure as an `<svg>` element; `name` keeps its ids apart from other figures'.

    Letters stay letters. Fields are pictures inside, stored in the element itself.
    """
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg", transparent=True, dpi=_RASTER_DPI, metadata=nothing)
    svg = text.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    body = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"\bxlink:href=", "href=", body)
    body = re.sub(r"font-family: [^;\"]*|(?<=px )'DejaVu Sans'[^;\"]*", _letters, body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, variable)
    body = _own_ids(body, name)
    box = re.search(r'viewBox="([^"]+)"', svg)
    assert box is not None
    width = round(figure.get_figwidth() * _PIXELS_AN_INCH)
    return (
        f'<svg role="img" aria-label="{escape(description)}" viewBox="{box[1]}" '
        f'style="width:100%;max-width:{width}px;height:auto">{body.strip()}</svg>'
    )


def _letters(style: re.Match[str]) -> str:
    family = style[0].startswith("font-family")
    return "font-family: var(--sans)" if family else "var(--sans)"


def _own_ids(body: str, name: str) -> str:
    """Number the ids in order, after `name`: unlike the drawing library's, they never vary."""
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([^")]+)', body))
    new = {old: f"{name}-{number}" for number, old in enumerate(used)}
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{new[m[1]]}"' if m[1] in new else "", body)
    return re.sub(r'(href="|url\()#([^")]+)', lambda m: f"{m[1]}#{new[m[2]]}", body)
