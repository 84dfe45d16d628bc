"""A grid of three axes of which one is short may be channels or frames: the user is asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ono.data.importers import Request, parse_channels, read_arrays
from ono.data.layout import parse_layout
from ono.errors import InputError

SAMPLES = 6


def request(
    folder: Path, inputs: tuple[int, ...], outputs: tuple[int, ...], **more: Any
) -> Request:
    random = np.random.default_rng(0)
    np.savez(
        folder / "d.npz",
        a=random.random((SAMPLES, *inputs)),
        u=random.random((SAMPLES, *outputs)),
        w=random.random(outputs),
    )
    return Request((f"{folder}/d.npz:u",), (f"{folder}/d.npz:a",), **more)


def shapes_read(given: Request) -> tuple[tuple[int, ...] | None, int, int, int]:
    """Return the shape of the mesh, and how many inputs, outputs and frames there are."""
    draft = read_arrays(given)
    frames = len(draft.arrays["times"]) if "times" in draft.arrays else 0
    return draft.mesh.shape, len(draft.inputs), len(draft.outputs), frames


@pytest.mark.parametrize(
    ("inputs", "outputs", "readings"),
    [
        (
            (2, 12, 16),
            (2, 12, 16),
            {((12, 16), 2, 2, 0), ((12, 16), 2, 1, 2), ((2, 12, 16), 1, 1, 0)},
        ),
        (
            (16, 16, 10),
            (16, 16, 10),
            {((16, 16), 10, 10, 0), ((16, 16), 10, 1, 10), ((16, 16, 10), 1, 1, 0)},
        ),
        ((10, 20, 20), (10, 20, 20, 2), {((20, 20), 10, 2, 10), ((10, 20, 20), 1, 2, 0)}),
    ],
)
def test_a_thin_grid_is_a_question_and_every_answer_can_be_copied(
    tmp_path: Path, inputs: tuple[int, ...], outputs: tuple[int, ...], readings: set[object]
) -> None:
    with pytest.raises(InputError, match=f"read in {len(readings)} ways .*; say which") as error:
        read_arrays(request(tmp_path, inputs, outputs))
    options = str(error.value).partition("say which: ")[2].split(", or ")
    found = set()
    for option in options:
        said = dict(re.findall(r'--layout (\w+)="([^"]*)"', option))
        layouts = {role: parse_layout(text) for role, text in said.items()}
        found.add(shapes_read(request(tmp_path, inputs, outputs, layouts=layouts)))
    assert found == readings


@pytest.mark.parametrize("shape", [(20, 21, 22), (9, 12, 12), (32, 32, 24), (16, 10, 16)])
def test_a_grid_of_three_like_axes_is_no_question(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert shapes_read(request(tmp_path, shape, shape)) == (shape, 1, 1, 0)


@pytest.mark.parametrize("told", ["mesh", "weights", "names"])
def test_what_says_that_it_is_a_grid_leaves_no_question(tmp_path: Path, told: str) -> None:
    more: dict[str, Any] = {
        "mesh": {"mesh": "grid"},
        "weights": {"weights": f"{tmp_path}/d.npz:w"},
        "names": {"names": {"inputs": parse_channels("one")}},
    }
    shape = (2, 12, 16)
    given = request(tmp_path, shape, shape, **more[told])
    assert shapes_read(given)[0] == shape
