"""The page and the Markdown: every table, what is drawn, and what is not run yet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ono.errors import DataError, InputError
from ono.experiments.catalogue import NAMES, experiment
from ono.experiments.ledger import Line
from ono.experiments.pictures import Frame, Picture, picture_file
from ono.experiments.tables import sheets
from ono.report.results_page import BEGIN, END, write_results
from ono.report.strips import strip_figure

FINER = experiment("super-resolution").tables[0].places["ono", "61"].cells[0]


def line(**changed: Any) -> Line:
    known: dict[str, Any] = {
        "experiment": "super-resolution",
        "recipe": FINER.recipe,
        "changes": FINER.changes,
        "recipe_sha256": "a" * 64,
        "data_id": "b" * 64,
        "data": "made",
        "seed": 0,
        "budget": "short",
        "status": "complete",
        "device": "a computer",
        "values": {"test": 0.01, "61": 0.02},
    }
    return Line(**(known | changed))


def picture(sizes: tuple[int, ...] = (9, 17)) -> Picture:
    random = np.random.default_rng(0)
    frames = tuple(
        Frame(f"{n} × {n}", "finer" if i else "resolution of training", 0.1 + i, *fields)
        for i, n in enumerate(sizes)
        for fields in [random.standard_normal((2, n, n))]
    )
    return Picture("darcy/ono", "pressure", "Pa", 7, frames)


def titles(name: str) -> list[str]:
    return [table.title for table in experiment(name).tables]


def test_tables_with_results_are_shown_and_the_others_named(tmp_path: Path) -> None:
    made = sheets([line()])
    html, markdown = (path.read_text() for path in write_results(made, tmp_path))
    for name in NAMES:
        for title in titles(name):
            assert (f"<h2>{title}</h2>" in html) == (name == "super-resolution")
            assert (f"## {title}" in markdown) == (name == "super-resolution")
            if name != "super-resolution":
                assert f"{title}: <code>ono reproduce {name}</code>" in html
                assert f"- {title}: `ono reproduce {name}`" in markdown
    assert "| ono | 0.0100 | 0.0200<br>paper 0.0204, -2 % | –<br>paper 0.0259 |" in markdown
    assert "0.0200<small>paper 0.0204, -2 %</small>" in html
    assert "<dt>data</dt><dd>made here" in html
    assert not re.search(r"https?://(?!www\.w3\.org)", html)


def test_an_empty_ledger_makes_a_page_too(tmp_path: Path) -> None:
    html, markdown = (path.read_text() for path in write_results(sheets([]), tmp_path))
    assert html.count("<code>ono reproduce") == sum(len(titles(name)) for name in NAMES)
    assert "<table" not in html
    assert "| " not in markdown


def test_pictures_of_the_markdown_lie_beside_it_and_never_vary(tmp_path: Path) -> None:
    lines = [line(seed=seed, values={"test": test}) for seed, test in enumerate((0.01, 0.02))]
    kept = tmp_path / "pictures"
    picture().save(picture_file(kept, lines[0]))
    made = sheets(lines, pictures=kept)
    _, markdown = write_results(made, tmp_path)
    found = re.findall(r"\]\((images/[^)]+)\)", markdown.read_text())
    assert [Path(name).name for name in found] == [
        "results-super-resolution-short-made.svg",
        "results-super-resolution-short-made-darcy-ono.svg",
    ]
    before = [(tmp_path / name).read_bytes() for name in found]
    write_results(made, tmp_path)
    assert [(tmp_path / name).read_bytes() for name in found] == before


def test_a_strip_has_a_line_each_for_truth_prediction_and_error() -> None:
    shown = picture()
    figure = strip_figure(shown)
    fields = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(fields) == 6
    truth, error = shown.frames[0].truth, shown.frames[0].error
    for drawn, expected in zip(fields[::2], (truth, truth + error, abs(error)), strict=True):
        assert drawn is not None
        np.testing.assert_allclose(np.sort(drawn.ravel()), np.sort(expected.ravel()))
    written = {text.get_text() for text in figure.texts}
    assert written == {"resolution of training", "finer"}
    assert "error 1.1000" in figure.axes[1].get_title()


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    file = picture_file(tmp_path, line())
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=re.escape(str(file))):
        sheets([line()], pictures=tmp_path)


def test_the_tables_are_put_between_the_marks_of_a_page(tmp_path: Path) -> None:
    docs = tmp_path / "docs" / "results.md"
    docs.parent.mkdir()
    docs.write_text(f"# By hand\n\n{BEGIN}\nyesterday\n{END}\n\n## Also by hand\n")
    for _ in range(2):
        write_results(sheets([line()]), tmp_path / "out", docs)
        text = docs.read_text()
        assert text.startswith("# By hand\n\n")
        assert text.endswith("\n\n## Also by hand\n")
        assert "yesterday" not in text
        assert text.count("| ono | 0.0100 |") == 1
    for name in re.findall(r"\]\((images/[^)]+)\)", docs.read_text()):
        assert (docs.parent / name).is_file()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"# By hand\n", re.escape(f"put {BEGIN} and {END}")),
        (b"\xff" + f"{BEGIN}\n{END}".encode(), "cannot be read: 'utf-8' codec"),
        (None, "cannot be read: .*No such file"),
    ],
)
def test_a_page_without_a_place_for_tables_is_refused_before_anything_is_written(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    docs = tmp_path / "page.md"
    if content is not None:
        docs.write_bytes(content)
    with pytest.raises(InputError, match=told):
        write_results(sheets([line()]), tmp_path / "out", docs)
    assert not (tmp_path / "out").exists()
