from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ono.domain import Domain
from ono.nn.interpolation import interpolate


@given(seed=st.integers(0, 999), shape=st.tuples(st.integers(2, 6), st.integers(2, 6)))
def test_multilinear_on_a_grid_is_exact_for_bilinear_functions(
    seed: int, shape: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    grid = Domain.grid(shape, batch=2, dtype=torch.float64)
    query = Domain(torch.rand(2, 9, 2, generator=generator, dtype=torch.float64))
    a, b, c, d = torch.randn(4, generator=generator, dtype=torch.float64)

    def f(x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = a + b * x[..., :1] + c * x[..., 1:] + d * x[..., :1] * x[..., 1:]
        return value

    assert torch.allclose(interpolate(grid, f(grid.coords), query, "linear"), f(query.coords))


def test_points_of_the_domain_get_their_own_value() -> None:
    torch.manual_seed(0)
    grid = Domain.grid((5, 4), batch=2)
    cloud = Domain(torch.rand(2, 20, 2))
    bent = Domain(grid.coords + 0.05 * grid.coords.square(), (5, 4))
    values = torch.randn(2, 20, 3)
    for domain in (grid, cloud, bent):
        for method in ("linear", "nearest"):
            back = interpolate(domain, values, domain, method)
            assert torch.allclose(back, values, atol=1e-5)


def test_nearest_keeps_jumps_and_padding_is_never_nearest() -> None:
    line = Domain(torch.tensor([[[0.0], [1.0], [0.4]]]), mask=torch.tensor([[True, True, False]]))
    values = torch.tensor([[[3.0], [12.0], [99.0]]])
    query = Domain(torch.tensor([[[0.45], [0.6]]]))
    assert interpolate(line, values, query, "nearest").flatten().tolist() == [3.0, 12.0]


def test_a_periodic_grid_has_no_seam() -> None:
    torch.manual_seed(0)
    nodes = torch.stack(
        torch.meshgrid(torch.arange(6.0) / 6, torch.arange(4.0) / 4, indexing="ij"), -1
    )
    torus = Domain(nodes.flatten(0, 1)[None], (6, 4), periodic=True)
    values, query = torch.randn(1, 24, 2), Domain(torch.rand(1, 50, 2))
    # The same field on a grid that repeats its first row and column at the ends.
    ends = nn.functional.pad(values.mT.unflatten(2, (6, 4)), (0, 1, 0, 1), mode="circular")
    closed = ends.flatten(2).mT
    for method in ("linear", "nearest"):
        there = interpolate(torus, values, query, method)
        assert torch.allclose(
            there, interpolate(Domain.grid((7, 5)), closed, query, method), atol=1e-5
        )
        assert torch.allclose(
            there, interpolate(torus, values, Domain(query.coords + 1), method), atol=1e-4
        )


def test_outside_a_grid_the_boundary_value_holds() -> None:
    line = Domain.grid((3,))
    outside = Domain(torch.tensor([[[-1.0], [2.0]]]))
    values = torch.tensor([[[1.0], [2.0], [5.0]]])
    assert interpolate(line, values, outside, "linear").flatten().tolist() == [1.0, 5.0]
