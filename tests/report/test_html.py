from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from ono.data.benchmarks import benchmark
from ono.data.generate import make
from ono.data.store import Channel, Dataset, Info, Mesh, Provenance, write_dataset
from ono.errors import CheckpointError, InputError
from ono.evaluate.operator import Operator
from ono.models.ono import ONO
from ono.report.evidence import gather
from ono.report.html import write_report
from ono.report.page import paragraph
from ono.train.loop import fit
from ono.train.recipe import Recipe

VOID = {"meta", "path", "use", "image", "rect", "br", "hr", "img"}
EVALUATIONS = [
    {"kind": "grid", "points": 64, "resolution": [8, 8], "mean": 0.4012, "samples": 2},
    {"kind": "grid", "points": 225, "resolution": [15, 15], "mean": 0.5123, "samples": 2},
    {"kind": "grid", "points": 1849, "resolution": [43, 43], "mean": 0.6234, "samples": 2},
    {"kind": "query", "points": 77, "resolution": None, "mean": 0.7345, "samples": 2},
]


def recipe(data: Path, resolution: int | None = None) -> Recipe:
    eigen = {"functions": 4, "heads": 2}
    content: dict[str, Any] = {
        "name": "darcy/tiny",
        "data": {"path": str(data), "resolution": resolution},
        "model": {"width": 8, "layers": 3, "eigen": eigen, "lower": {"heads": 2}},
        "train": {"epochs": 2, "batch": 4, "device": "cpu"},
    }
    return Recipe.from_mapping(content)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; its dataset is beside it."""
    root = tmp_path_factory.mktemp("report")
    make(benchmark("darcy"), root / "data", size="quick", samples=12)
    fit(recipe(root / "data", resolution=15), root / "run")
    return root


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained / "run", tmp_path / "run")


class Page(HTMLParser):
    """A page whose elements must be closed in order."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.source = file.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, found, value in self.attributes if found == name]


def test_report_tells_the_result_and_what_made_it(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    file = write_report(run)
    page = Page(file)
    assert file == run / "report.html"
    assert "darcy / ono" in page.text
    for error in (result["test"], result["validation"]):
        assert f"{error:#.4g}" in page.text
    assert f"{result['parameters']:,}" in page.text
    assert result["device"] in page.text
    assert result["dataset_sha256"] in page.text
    assert result["recipe_sha256"] in page.text
    assert f"Commit {result['commit'] or 'not known'}" in page.text
    assert f"torch {torch.__version__}" in page.text
    assert "Failed factorisations 0" in page.text
    assert "Skipped steps 0 (0 tolerated)" in page.text
    assert "ono eval RUN --resolution N" in page.text
    written = page.source.split("<pre>")[1].split("</pre>")[0]
    assert yaml.safe_load(written) == yaml.safe_load((run / "recipe.yaml").read_text())


def test_report_shows_the_best_median_and_worst_test_sample(run: Path) -> None:
    errors = json.loads((run / "result.json").read_text())["test_errors"]
    rows = sorted(errors, key=lambda row: float(errors[row]))
    page = Page(write_report(run))
    for label, row in zip(
        ("best", "median", "worst"), (rows[0], rows[(len(rows) - 1) // 2], rows[-1]), strict=True
    ):
        assert f"{label}: row {row}, relative L2 {errors[row]:.4g}" in page.text
    descriptions = page.values("aria-label")
    assert len(descriptions) == 2 + 2 + 1 + 1  # two charts in two widths, samples, eigenfunctions
    assert any(f"best row {rows[0]}" in text for text in descriptions)


def test_report_stands_alone(run: Path) -> None:
    (run / "evaluations.json").write_text(json.dumps([complete(e) for e in EVALUATIONS]))
    page = Page(write_report(run))
    assert not re.search(r"https?://|@import|<script|<link", page.source)
    assert not page.values("src")
    for target in page.values("href"):
        assert target.startswith(("#", "data:image/png;base64,"))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    wanted = {t[1:] for t in page.values("href") if t.startswith("#")}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", page.source))
    assert wanted
    assert wanted <= set(ids)


def test_report_is_the_same_bytes_each_time(run: Path, tmp_path: Path) -> None:
    first = write_report(run, tmp_path / "a.html").read_bytes()
    assert write_report(run, tmp_path / "b.html").read_bytes() == first


def test_report_replaces_the_old_one_whole_or_not_at_all(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = run / "report.html"
    file.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", full_disk)
        with pytest.raises(InputError, match="No space left"):
            write_report(run)
    assert file.read_text() == "old"
    assert not list(run.glob(".report*"))
    write_report(run)
    assert "old" not in file.read_text()[:100]
    assert not list(run.glob(".report*"))


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def complete(evaluation: dict[str, Any]) -> dict[str, Any]:
    mean = evaluation["mean"]
    return {"split": "test", "median": mean, "worst": 2 * mean, "seconds": 1.0} | evaluation


def test_evaluations_become_a_table_with_the_training_resolution_marked(run: Path) -> None:
    (run / "evaluations.json").write_text(json.dumps([complete(e) for e in EVALUATIONS]))
    page = Page(write_report(run))
    for mean in ("0.4012", "0.5123", "0.6234", "0.7345"):
        assert mean in page.text
    marked = re.findall(r'<tr class="trained">.*?</tr>', page.source)
    assert len(marked) == 1
    assert "grid 15 × 15, as trained" in marked[0]
    assert "ono eval RUN" not in page.text


def test_broken_files_are_named(run: Path) -> None:
    (run / "evaluations.json").write_text('[{"kind": "grid"}]')
    with pytest.raises(InputError, match=r"evaluations\.json is not a list of evaluations"):
        write_report(run)
    (run / "evaluations.json").unlink()
    (run / "result.json").write_text('{"test": 0.1')
    with pytest.raises(CheckpointError, match=r"result\.json cannot be read"):
        write_report(run)


def test_markup_in_names_is_shown_not_run(run: Path) -> None:
    evil = "<script>alert(1)</script>"
    file = run / "recipe.yaml"
    content = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(content | {"name": evil}))
    surroundings = json.loads((run / "environment.json").read_text())
    surroundings["packages"][evil] = evil
    (run / "environment.json").write_text(json.dumps(surroundings | {evil: evil}))
    with (run / "events.jsonl").open("a") as events:
        events.write(json.dumps({"event": "warning", "message": evil}) + "\n")
    evaluation = complete(EVALUATIONS[0]) | {"split": evil, "kind": evil}
    (run / "evaluations.json").write_text(json.dumps([evaluation]))
    page = Page(write_report(run))
    assert "<script" not in page.source
    assert page.text.count(evil) >= 6


def test_markup_in_channel_names_is_shown_not_run(tmp_path: Path) -> None:
    evil = "<script>`$x$`</script>"
    outputs = (Channel(name=evil), Channel(name='"onload="x'))
    run = cloud_run(tmp_path, name=evil, outputs=outputs)
    page = Page(write_report(run))
    assert "<script" not in page.source
    assert not page.values("onload")
    assert f"{evil}, truth" in page.text
    assert f"{evil} / ono" in page.text


def cloud_run(root: Path, **changes: Any) -> Path:
    """Train on ragged clouds with a number for each sample and two outputs."""
    random = np.random.default_rng(0)
    content: dict[str, Any] = {
        "name": "clouds",
        "task": "steady",
        "mesh": Mesh(kind="cloud", dim=2, shared=False),
        "inputs": (Channel(name="a"),),
        "outputs": (Channel(name="u"), Channel(name="v")),
        "params": (Channel(name="speed"),),
        "samples": 6,
        "splits": {"train": (0, 2), "validation": (2, 4), "test": (4, 6)},
        "provenance": Provenance(maker="test"),
    }
    offsets = np.array([0, 9, 20, 32, 41, 53, 60])
    write_dataset(
        root / "clouds",
        Info(**content | changes),
        {
            "coords": random.random((60, 2), np.float32),
            "inputs": random.random((60, 1), np.float32),
            "outputs": random.random((60, 2), np.float32),
            "params": random.random((6, 1), np.float32),
            "offsets": offsets,
        },
    )
    return fit(recipe(root / "clouds"), root / "run").path


def test_ragged_clouds_are_predicted_and_drawn(tmp_path: Path) -> None:
    run = cloud_run(tmp_path)
    found = gather(run)
    assert found.pictures is not None
    lengths = {sample.row: len(sample.truth) for sample in found.pictures.samples}
    assert lengths == {4: 12, 5: 7}
    page = Page(write_report(run))
    assert "maps a, speed to u, v on a cloud of 10 points" in page.text
    assert {"u, truth", "v, truth"} <= set(re.findall(r"[uv], truth", page.text))


def test_eigenfunctions_are_those_of_the_layer(run: Path) -> None:
    found = gather(run, layer=2)
    assert found.pictures is not None
    eigen = found.pictures.eigen
    assert eigen is not None
    assert (eigen.layer, eigen.fields.shape) == (2, (2, 4, 225))
    assert (np.diff(eigen.mu, axis=1) <= 0).all()
    operator = Operator.load(run)
    assert isinstance(operator.model, ONO)
    dataset = Dataset.open(found.recipe.data.path)
    assert found.parts is not None
    batch = found.parts.test.read(np.array([eigen.row - dataset.rows("test").start]))
    scale = operator.normaliser
    with torch.no_grad():
        psi = operator.model.eigenfunctions(
            scale.place(batch.domain), scale.encode(batch.values), layer=2
        )
    index = int(eigen.functions[1, 0])
    np.testing.assert_allclose(eigen.fields[1, 0], psi[0, :, 1, index])


def test_the_layer_is_the_middle_one_unless_given(run: Path) -> None:
    assert "Layer 1 of 0 to 2" in Page(write_report(run)).text
    assert "Layer 0 of 0 to 2" in Page(write_report(run, layer=0)).text
    with pytest.raises(InputError, match="layer must be 0 to 2, got 3"):
        write_report(run, layer=3)


def test_an_unfinished_run_shows_validation_and_says_so(run: Path) -> None:
    (run / "result.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(lines[0] + "\n" + lines[1][:20])
    page = Page(write_report(run))
    assert "not finished: 1 of 2 epochs are done" in page.text
    assert f"{json.loads(lines[0])['validation']:#.4g}" in page.text
    assert "sample of the validation split" in page.text
    assert "Test error" not in page.text
    start, stop = Dataset.open(gather(run).recipe.data.path).info.splits["validation"]
    shown = {int(row) for row in re.findall(r": row (\d+), relative", page.text)}
    assert shown
    assert shown <= set(range(start, stop))


def test_a_run_that_has_just_begun_has_a_report(run: Path) -> None:
    for name in ("result.json", "metrics.jsonl", "events.jsonl"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints")
    page = Page(write_report(run))
    assert "not finished: 0 of 2 epochs are done" in page.text
    assert "No epoch has ended yet" in page.text
    assert "no trained operator at" in page.text


def test_what_a_crash_made_of_logs_is_left_out(run: Path) -> None:
    for name in ("metrics.jsonl", "events.jsonl"):
        with (run / name).open("ab") as file:
            file.write(b'\xff\xfe{"a": 1}\n3\n[1, 2]\n{"epo')
    (run / "environment.json").write_text('{"python": "3.')
    assert "Test error" in Page(write_report(run)).text


def test_without_its_dataset_a_report_has_no_pictures_and_says_why(run: Path) -> None:
    gone = run.parent / "gone"
    file = run / "recipe.yaml"
    content = yaml.safe_load(file.read_text())
    content["data"]["path"] = str(gone)
    file.write_text(yaml.safe_dump(content))
    page = Page(write_report(run))
    assert f"Without pictures: no dataset at {gone}" in page.text
    assert "Test error" in page.text
    assert "data:image" not in page.source
    with pytest.raises(InputError, match="layer must be 0 to 2, got -1"):
        write_report(run, layer=-1)


def test_other_data_at_the_same_place_is_not_drawn(run: Path, trained: Path) -> None:
    other = shutil.copytree(trained / "data", run.parent / "other")
    (other / "dataset.json").unlink()
    old = Dataset.open(trained / "data")
    arrays = {name: np.array(array) for name, array in old.arrays.items()}
    arrays["outputs"] *= 2
    write_dataset(other, old.info, arrays, overwrite=True)
    file = run / "recipe.yaml"
    content = yaml.safe_load(file.read_text())
    content["data"]["path"] = str(other)
    file.write_text(yaml.safe_dump(content))
    page = Page(write_report(run))
    assert "holds other data than the run was trained on" in page.text
    assert "data:image" not in page.source
    assert "Data from" not in page.text


def test_the_origin_is_that_of_the_result_whatever_the_recipe_says_today(run: Path) -> None:
    kept = json.loads((run / "result.json").read_text())
    assert "was changed after it ended" not in Page(write_report(run)).text
    file = run / "recipe.yaml"
    content = yaml.safe_load(file.read_text())
    content["seed"] = 5
    file.write_text(yaml.safe_dump(content))
    page = Page(write_report(run))
    assert "was changed after it ended" in page.text
    assert kept["recipe_sha256"] in page.text
    assert "Seed 0" in page.text


def test_what_is_no_run_and_what_cannot_be_written_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run at"):
        write_report(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write the report to"):
        write_report(run, tmp_path / "file" / "report.html")


def test_only_paired_backticks_make_code() -> None:
    assert paragraph("run `a < b` now") == "<p>run <code>a &lt; b</code> now</p>"
    assert paragraph("one ` alone") == "<p>one ` alone</p>"
    assert paragraph("`a` and ` alone") == "<p><code>a</code> and ` alone</p>"
