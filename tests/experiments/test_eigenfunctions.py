"""The appendix: what one layer learns of a known operator, and where the claim ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ono.errors import InputError
from ono.experiments.eigenfunctions import CASES, LENGTH, POINTS, Recovery, known_operator, recover


@pytest.mark.parametrize("case", CASES)
def test_the_known_functions_are_eigenfunctions(case: str) -> None:
    operator = known_operator(case)
    gram = operator.functions.mT @ operator.functions / POINTS
    assert torch.allclose(gram, torch.eye(POINTS - 1, dtype=torch.float64), atol=1e-12)
    h = operator.functions[:, :5]
    expected = operator.eigenvalues[:5] * h
    assert torch.allclose(operator.apply(h), expected, atol=1e-12)


def test_the_operator_solves_the_differential_equation() -> None:
    """u - l² u″ = h with insulated ends, by finite differences on the same nodes."""
    second = np.diag(np.full(POINTS, -2.0)) + np.eye(POINTS, k=1) + np.eye(POINTS, k=-1)
    second[0, 0] = second[-1, -1] = -1.0
    x = (np.arange(POINTS) + 0.5) / POINTS
    h = np.cos(np.pi * x) + 0.5 * np.cos(3 * np.pi * x) + 0.2
    u = np.linalg.solve(np.eye(POINTS) - LENGTH**2 * POINTS**2 * second, h)
    ours = known_operator("white").apply(torch.from_numpy(h)[:, None])[:, 0].numpy()
    assert np.abs(ours - u).max() < 1e-3


def test_white_inputs_give_the_leading_eigenpairs() -> None:
    found = recover("white", steps=600)
    assert found.span < 5
    assert found.functions < 5
    assert found.eigenvalues < 0.01


def test_coloured_inputs_give_other_functions() -> None:
    found = recover("coloured", steps=200)
    assert found.span > 80


def test_a_negative_eigenvalue_is_not_found() -> None:
    found = recover("indefinite", steps=200)
    assert found.span > 80
    assert (found.learned_values > 0).all()


def test_of_repeated_eigenvalues_only_the_span_is_found() -> None:
    found = recover("repeated", steps=300)
    assert found.span < 5
    assert found.functions > 10
    assert found.eigenvalues < 0.01


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    found = recover("white", steps=5)
    found.save(tmp_path / "a" / "b.safetensors")
    again = Recovery.load("white", tmp_path / "a" / "b.safetensors")
    # Not bit for bit: how LAPACK rounds depends on where in memory its input lies.
    told = (found.span, found.functions, found.eigenvalues)
    assert (again.span, again.functions, again.eigenvalues) == pytest.approx(told, rel=1e-9)


def test_unknown_cases_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean white"):
        recover("wite", steps=1)
