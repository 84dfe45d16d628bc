"""The README and the documentation do what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
SCRIPTS = sysconfig.get_path("scripts")


def blocks(page: Path, language: str = "python|console") -> list[tuple[str, str]]:
    """Return the languages and the texts of a page's blocks, in order."""
    return re.findall(rf"^```({language})\n(.*?)^```$", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.name)
def test_snippets_and_commands_run_in_order(page: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
    for language, text in blocks(page):
        lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
        commands = [shlex.split(line) for line in lines]
        assert all(command[0] == "ono" for command in commands)
        if language == "python":
            commands = [[sys.executable, "-W", "error", "-c", text]]
        for command in commands:
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{page.name}, {shlex.join(command)}:\n{done.stderr}"


def test_pages_link_to_files_and_headings_that_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            name, _, heading = target.partition("#")
            linked = (page.parent / name) if name else page
            assert linked.exists(), f"{page.name} links to {target}"
            if heading:
                titles = re.findall(r"^#+ (.+)$", linked.read_text(), re.M)
                anchors = {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}
                assert heading in anchors, f"{page.name} links to {target}"


def test_the_two_commands_stand_at_the_top_of_the_readme() -> None:
    assert re.search(r"^# ono\n\n```\nmake demo .*\nmake test ", (ROOT / "README.md").read_text())


def test_readme_example_is_short() -> None:
    ((_, example),) = blocks(ROOT / "README.md", "python")
    assert len(example.strip().splitlines()) <= 14


def test_promises_name_tests_that_exist() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    named = re.findall(r"`(tests/[\w/.]*)`", page)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_tables_are_what_the_results_say() -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_models_can_do_is_what_the_table_says() -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "capabilities.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / "benchmarks" / "results" / "capabilities.jsonl").read_text()
