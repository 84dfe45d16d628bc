"""Block Thomas: lines of small blocks against dense solves."""

from __future__ import annotations

import pytest
import torch

from ono.physics.block_thomas import solve_lines


@pytest.mark.parametrize(("steps", "rows", "lines"), [(1, 4, 3), (6, 4, 5), (3, 1, 2), (2, 3, 1)])
def test_lines_match_a_dense_solve(steps: int, rows: int, lines: int) -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = 2 * steps
    size = (blocks, rows, rows, lines)
    low, middle, high = torch.randn(3, *size, generator=generator, dtype=torch.float64)
    middle += 5 * rows * torch.eye(rows)[None, :, :, None]
    rhs = torch.randn(blocks, rows, lines, generator=generator, dtype=torch.float64)

    dense = torch.zeros(lines, blocks, rows, blocks, rows, dtype=torch.float64)
    for k in range(blocks):
        dense[:, k, :, k] = middle[k].permute(2, 0, 1)
        if k > 0:
            dense[:, k, :, k - 1] = low[k].permute(2, 0, 1)
        if k + 1 < blocks:
            dense[:, k, :, k + 1] = high[k].permute(2, 0, 1)
    square = dense.reshape(lines, blocks * rows, blocks * rows)
    expected = torch.linalg.solve(square, rhs.permute(2, 0, 1).flatten(1))

    # Steps of a half count from the middle, where low and high change their roles.
    def halves(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.stack((left[:steps].flip(0), right[steps:]), -2)

    panels = (
        torch.cat((middle, high, rhs[:, :, None]), 2),
        torch.cat((middle, low, rhs[:, :, None]), 2),
    )
    x = solve_lines(halves(*panels), halves(low, high))
    joined = torch.cat((x[:, :, 0].flip(0), x[:, :, 1])).permute(2, 0, 1).flatten(1)
    assert float((joined - expected).abs().max()) <= 1e-13


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("axis", [3, 4])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-5)], ids=["f64", "f32"]
)
def test_fused_sweeps_agree_with_array_operations(
    axis: int, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    panels = torch.randn(4, 9, 2, 7, 6, 50, generator=generator, dtype=dtype)
    panels[range(4), range(4)] += 12
    outer = torch.randn(4, 4, 2, 7, 6, 50, generator=generator, dtype=dtype)
    there = solve_lines(panels.cuda().movedim(axis, 0), outer.cuda().movedim(axis, 0))
    here = solve_lines(panels.movedim(axis, 0), outer.movedim(axis, 0))
    assert float((there.cpu() - here).abs().max() / here.abs().max()) <= tolerance
