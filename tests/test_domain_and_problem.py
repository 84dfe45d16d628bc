"""What the first two things a user builds refuse, and with which words."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import ono
from ono.domain import Domain
from ono.errors import ShapeError
from ono.problem import Problem


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"dim": 0}, "dim must be at least 1"),
        ({"out_channels": 0}, "out_channels must be at least 1"),
        ({"in_channels": -1}, "in_channels must be at least 0"),
    ],
)
def test_a_problem_of_impossible_sizes_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ShapeError, match=told):
        Problem(**({"dim": 2, "in_channels": 1, "out_channels": 1} | wrong))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("ono.Problem(2, 1, 1, kind='gird')", "kind must be one of grid, structured, cloud"),
        ("ono.relative_l2(torch.ones(4, 9), torch.ones(4, 9, 1))", "[4, 9] and truth [4, 9, 1]"),
    ],
)
def test_without_checks_of_types_these_are_refused_too(call: str, told: str) -> None:
    """In a process of its own: here the checks of shapes and types would be first."""
    script = [sys.executable, "-c", f"import ono, torch; {call}"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert "ShapeError" in done.stderr
    assert told in done.stderr


@pytest.mark.parametrize("shape", [(), (0, 5), (4, -1)])
def test_a_grid_needs_nodes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="at least one node along each axis"):
        Domain.grid(shape)


def test_values_of_another_dtype_are_refused_with_the_way_out() -> None:
    problem = Problem(dim=2, in_channels=1, out_channels=1)
    model = ono.ONO(ono.ONOConfig(width=16, layers=2), problem)
    with pytest.raises(ShapeError, match=r"float64 and coordinates in torch\.float32.*dtype of"):
        model(Domain.grid((4, 4)), torch.rand(1, 16, 1).double())


def test_a_domain_stays_periodic_wherever_it_goes() -> None:
    torus = Domain(torch.rand(2, 6, 1), (6,), periodic=True)
    assert torus.to("cpu").periodic
    assert torus.repeat(3).periodic
    assert not torus.take(torch.tensor([1, 0])).periodic  # it has no axes any more


@pytest.mark.parametrize("name", ono.__all__)
def test_every_public_name_is_there_and_explained(name: str) -> None:
    assert getattr(ono, name).__doc__
