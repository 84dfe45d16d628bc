"""Block-tridiagonal Cholesky against dense solves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ono.errors import ShapeError
from ono.physics import block_tridiagonal


def positive(batch: int, blocks: int, size: int, meet: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return panels and the dense matrices they stand for, A = L L^T of a random L."""
    generator = torch.Generator().manual_seed(seed)
    total = blocks * size
    lower = torch.zeros(batch, total, total, dtype=torch.float64)
    for k in range(blocks):
        here = slice(k * size, (k + 1) * size)
        noise = torch.randn(batch, size + meet, size, dtype=torch.float64, generator=generator)
        lower[:, here, here] = 0.3 * noise[:, :size].tril(-1) / size**0.5 + torch.eye(size)
        if k + 1 < blocks:
            after = slice((k + 1) * size, (k + 1) * size + meet)
            lower[:, after, here] = 0.3 * noise[:, size:] / size**0.5
    dense = lower @ lower.mT
    panels = torch.zeros(batch, blocks, size + meet, size, dtype=torch.float64)
    for k in range(blocks):
        rows = dense[:, k * size : (k + 1) * size + meet, k * size : (k + 1) * size]
        panels[:, k, : rows.shape[1]] = rows
    return panels, dense


@settings(deadline=None, max_examples=25)
@given(
    blocks=st.integers(1, 5), size=st.integers(1, 9), share=st.floats(0, 1), seed=st.integers(0, 99)
)
def test_solution_is_that_of_the_dense_matrix(
    blocks: int, size: int, share: float, seed: int
) -> None:
    panels, dense = positive(3, blocks, size, round(share * size), seed)
    b = torch.randn(3, blocks * size, dtype=torch.float64)
    x = block_tridiagonal.factor(panels).solve(b)
    for matrix, right, mine in zip(dense.numpy(), b.numpy(), x.numpy(), strict=True):
        assert np.abs(mine - np.linalg.solve(matrix, right)).max() <= 1e-12


def test_batches_of_large_blocks_are_solved_one_by_one_alike() -> None:
    panels, dense = positive(3, 3, 192, 96)
    b = torch.randn(3, 3 * 192, dtype=torch.float64)
    together = block_tridiagonal.factor(panels).solve(b)
    for k in range(3):
        alone = block_tridiagonal.factor(panels[k : k + 1]).solve(b[k : k + 1])
        assert float((alone[0] - together[k]).abs().max()) <= 1e-12
        assert float((dense[k] @ together[k] - b[k]).abs().max()) <= 1e-11


def test_factor_leaves_its_arguments_alone() -> None:
    panels, _ = positive(2, 3, 4, 2)
    before = panels.clone()
    b = torch.ones(2, 12, dtype=torch.float64)
    block_tridiagonal.factor(panels).solve(b)
    assert torch.equal(panels, before)
    assert (b == 1).all()


@pytest.mark.parametrize("block", [0, 2])
def test_a_matrix_that_is_not_positive_gives_nan_alone(block: int) -> None:
    panels, _ = positive(3, 3, 4, 2)
    good = block_tridiagonal.factor(panels).solve(torch.ones(3, 12, dtype=torch.float64))
    panels[1, block, 3, 3] = -1.0
    x = block_tridiagonal.factor(panels).solve(torch.ones(3, 12, dtype=torch.float64))
    assert x[1].isnan().all()
    assert torch.equal(x[[0, 2]], good[[0, 2]])


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ShapeError, match="n = 4 columns, got 9"):
        block_tridiagonal.factor(torch.ones(1, 2, 9, 4))
    panels, _ = positive(1, 3, 4, 2)
    with pytest.raises(ShapeError, match="3 blocks of 4 unknowns, got 11"):
        block_tridiagonal.factor(panels).solve(torch.ones(1, 11, dtype=torch.float64))
