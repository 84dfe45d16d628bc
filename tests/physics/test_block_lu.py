"""Block elimination without symmetry against dense solves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ono.errors import ShapeError
from ono.physics import block_lu


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@settings(deadline=None, max_examples=25)
@given(blocks=st.integers(1, 5), size=st.integers(1, 9), seed=st.integers(0, 99))
def test_solution_is_that_of_the_dense_matrix(blocks: int, size: int, seed: int) -> None:
    diagonal = random(3, blocks, size, size, seed=seed) + 4 * size * torch.eye(size)
    lower, upper = random(2, 3, blocks - 1, size, size, seed=seed + 100)
    b = random(3, blocks, size, seed=seed + 200)
    x = block_lu.solve(diagonal, lower, upper, b)
    for sample in range(3):
        dense = np.zeros((blocks, size, blocks, size))
        for k in range(blocks):
            dense[k, :, k] = diagonal[sample, k]
            if k > 0:
                dense[k, :, k - 1] = lower[sample, k - 1]
                dense[k - 1, :, k] = upper[sample, k - 1]
        flat = dense.reshape(blocks * size, blocks * size)
        expected = np.linalg.solve(flat, b[sample].flatten().numpy())
        assert np.abs(x[sample].flatten().numpy() - expected).max() <= 1e-12


@pytest.mark.parametrize("size", [1, 64, 65, 130, 323])
def test_inverse_by_halves_is_the_inverse(size: int) -> None:
    a = random(3, size, size, seed=size) / size**0.5 + 3 * torch.eye(size)
    before = a.clone()
    product = block_lu.inverse(a) @ a
    assert float((product - torch.eye(size)).abs().max()) <= 1e-12
    assert torch.equal(a, before)


def test_saddle_points_need_no_pivots_between_halves() -> None:
    """Zeros on the diagonal are harmless where velocities come before pressures."""
    velocity, pressure = 90, 40
    noise = random(2, velocity, velocity, seed=0)
    positive = noise @ noise.mT / velocity + 0.1 * torch.eye(velocity)
    skew = random(2, velocity, velocity, seed=1)
    a = torch.zeros(2, velocity + pressure, velocity + pressure, dtype=torch.float64)
    a[:, :velocity, :velocity] = positive + 0.1 * (skew - skew.mT)
    a[:, :velocity, velocity:] = random(2, velocity, pressure, seed=2)
    a[:, velocity:, :velocity] = a[:, :velocity, velocity:].mT
    product = block_lu.inverse(a) @ a
    assert float((product - torch.eye(velocity + pressure)).abs().max()) <= 1e-10


def test_missing_blocks_are_refused() -> None:
    square = torch.ones(1, 3, 2, 2)
    with pytest.raises(ShapeError, match="3 blocks need 2 between them, got 1"):
        block_lu.solve(square, square[:, :1], square[:, :1], torch.ones(1, 3, 2))
