from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ono.data.layout import LETTERS, Axes, Named, Role, arrange, find_layouts, parse_layout
from ono.errors import InputError


def layouts(*arrays: tuple[Role, tuple[int, ...]], **known: Any) -> dict[str, str]:
    said = {role: parse_layout(text) for role, text in known.pop("said", {}).items()}
    named = [Named(role, f"file{at}", shape) for at, (role, shape) in enumerate(arrays)]
    found = find_layouts(named, said, **known)
    return {array.role: " ".join(axes) for array, axes in found.items()}


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ((90, 64, 48), (90, 64, 48), {"inputs": "b x y", "outputs": "b x y"}),
        ((90, 64, 48, 3), (90, 64, 48), {"inputs": "b x y c", "outputs": "b x y"}),
        ((90, 64), (90, 64, 2), {"inputs": "b x", "outputs": "b x c"}),
        ((90, 20, 21, 22), (90, 20, 21, 22, 1), {"inputs": "b x y z", "outputs": "b x y z c"}),
    ],
)
def test_grids_without_coords(
    inputs: tuple[int, ...], outputs: tuple[int, ...], expected: dict[str, str]
) -> None:
    assert layouts(("inputs", inputs), ("outputs", outputs)) == expected


@pytest.mark.parametrize(
    ("coords", "outputs", "expected"),
    [
        ((200, 2), (50, 200, 1), ("p c", "b p c")),
        ((200, 3), (50, 200), ("p c", "b p")),
        ((50, 200, 2), (50, 200, 12), ("b p c", "b p c")),
        ((33, 17, 2), (50, 33, 17), ("x y c", "b x y")),
        ((50, 33, 17, 2), (50, 33, 17, 4), ("b x y c", "b x y c")),
        ((33, 17, 3), (50, 33, 17), ("x y c", "b x y")),
        ((200,), (50, 200), ("x", "b x")),
        ((200, 1), (50, 200), ("x c", "b x")),
    ],
)
def test_coords_decide_which_axis_is_points(
    coords: tuple[int, ...], outputs: tuple[int, ...], expected: tuple[str, str]
) -> None:
    found = layouts(("coords", coords), ("outputs", outputs))
    assert (found["coords"], found["outputs"]) == expected


def test_a_line_of_points_is_a_cloud_when_said() -> None:
    found = layouts(("coords", (200,)), ("outputs", (50, 200)), mesh="cloud")
    assert found == {"coords": "p", "outputs": "b p"}


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [((90, 64, 48, 20), "b x y t"), ((90, 20, 64, 48), "b t x y"), ((90, 20, 64, 2), "b t x c")],
)
def test_times_decide_which_axis_is_time(outputs: tuple[int, ...], expected: str) -> None:
    assert layouts(("outputs", outputs), times=20) == {"outputs": expected}


def test_a_spoken_layout_serves_arrays_without_channels_or_time() -> None:
    said = {"inputs": "b t x y c", "outputs": "b t x y c"}
    found = layouts(("inputs", (9, 30, 20)), ("outputs", (9, 5, 30, 20, 2)), said=said)
    assert found == {"inputs": "b x y", "outputs": "b t x y c"}


def test_channel_names_rule_out_readings() -> None:
    arrays: Any = (("inputs", (90, 30, 8)), ("outputs", (90, 30)))
    assert layouts(*arrays)["inputs"] == "b x c"
    with pytest.raises(InputError, match="do not fit together"):
        layouts(*arrays, channels={"inputs": 1})


@pytest.mark.parametrize(
    ("arrays", "known", "advice"),
    [
        # One file has its grid axes exchanged.
        (
            [("inputs", (50, 33, 17)), ("outputs", (50, 17, 33))],
            {},
            '--layout inputs="b x y" --layout outputs="b y x"',
        ),
        # Samples last, as some published files have them.
        (
            [("outputs", (972, 2000)), ("coords", (972, 2, 2000))],
            {},
            '--layout outputs="p b" --layout coords="p c b"',
        ),
        ([("outputs", (50, 1, 33)), ("params", (50, 3))], {}, '--layout outputs="b c x"'),
        ([("outputs", (20, 20, 20, 20))], {"times": 20}, '--layout outputs="b t x y"'),
        ([("inputs", (40, 200)), ("outputs", (50, 200))], {}, "inputs 40, outputs 50"),
    ],
)
def test_what_is_not_clear_shows_shapes_and_a_layout_to_copy(
    arrays: list[tuple[Role, tuple[int, ...]]], known: dict[str, Any], advice: str
) -> None:
    with pytest.raises(InputError) as error:
        layouts(*arrays, **known)
    assert advice in str(error.value)
    for _, shape in arrays:
        assert str(list(shape)) in str(error.value)


def offers(*arrays: tuple[Role, tuple[int, ...]]) -> list[str]:
    with pytest.raises(InputError) as error:
        layouts(*arrays)
    return str(error.value).partition("say so: ")[2].split(", or ")


def test_an_axis_too_many_may_be_channels_or_time() -> None:
    start = '--layout inputs="b x y" --layout outputs='
    for count, letters in ((5, "ct"), (20, "t")):
        offered = offers(("inputs", (30, 12, 16)), ("outputs", (30, count, 12, 16)))
        plain = [f'{start}"b {letter} x y"' for letter in letters]
        assert offered[: len(plain)] == plain
        assert not any("c b" in option or "t b" in option for option in offered)


def test_samples_are_in_the_middle_only_if_nothing_else_fits() -> None:
    assert 'outputs="x b y"' in offers(("params", (30, 2)), ("outputs", (12, 30, 16)))[0]
    for option in offers(("params", (30, 2)), ("outputs", (12, 16, 30))):
        assert re.search('outputs="[^"]* b"', option)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("b q", "'q'"), ("b x x", "twice"), ("b p x", "both p and"), ("  ", "empty")],
)
def test_layouts_that_mean_nothing(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_layout(text)


def test_a_layout_of_another_rank_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"\[9, 30, 20, 2, 2\] has 5 axes, its layout `b x c` has 3"
    ):
        layouts(("outputs", (9, 30, 20, 2, 2)), said={"outputs": "b x c"})


def test_many_files_of_one_shape_are_read_at_once() -> None:
    same: Any = [("inputs", (90, 12, 12)) for _ in range(30)]
    assert layouts(*same, ("outputs", (90, 12, 12)))["inputs"] == "b x y"
    with pytest.raises(InputError, match="inputs 90, outputs 80"):
        layouts(*same, ("outputs", (80, 12, 12)))


ORDERS = [order for n in (2, 3, 4) for order in itertools.permutations("bxyc", n) if "b" in order]


@given(st.sampled_from(ORDERS), st.integers(0, 99))
def test_arrange_moves_every_value_to_its_place(axes: Axes, seed: int) -> None:
    sizes = {"b": 4, "x": 3, "y": 5, "c": 2}
    array = np.random.default_rng(seed).random([sizes[letter] for letter in axes])
    ordered = arrange(array, axes)
    kept = [letter for letter in LETTERS if letter in axes]
    assert ordered.shape == (*(sizes[letter] for letter in kept), *(() if "c" in axes else (1,)))
    for place in np.ndindex(array.shape):
        at = dict(zip(axes, place, strict=True))
        assert (
            ordered[(*(at[letter] for letter in kept), *(() if "c" in axes else (0,)))]
            == array[place]
        )
