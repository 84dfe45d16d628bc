from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ono.domain import Domain
from ono.nn import local_planes
from ono.nn.interpolation import interpolate
from ono.nn.local_planes import LocalPlanes, times_as_channels


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999), dim=st.integers(1, 3))
def test_linear_functions_are_carried_where_neighbours_lie_around(seed: int, dim: int) -> None:
    """Nodes of a grid moved a little: no direction in which neighbours do not spread."""
    generator = torch.Generator().manual_seed(seed)
    even = Domain.grid((7,) * dim, dtype=torch.float64).coords
    moved = even + 0.03 * torch.rand(even.shape, generator=generator, dtype=torch.float64)
    query = Domain(torch.rand(1, 20, dim, generator=generator, dtype=torch.float64))
    slope = torch.randn(dim, 2, generator=generator, dtype=torch.float64)
    there = LocalPlanes(Domain(moved), query).carry(1 + moved @ slope)
    torch.testing.assert_close(there, 1 + query.coords @ slope, rtol=0, atol=0.02)


def test_curved_functions_are_carried_better_than_by_distance_alone() -> None:
    torch.manual_seed(0)
    cloud, query = Domain(torch.rand(2, 400, 2)), Domain(0.1 + 0.8 * torch.rand(2, 300, 2))

    def field(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(4 * x[..., :1]) * torch.cos(3 * x[..., 1:])

    planes = LocalPlanes(cloud, query).carry(field(cloud.coords)) - field(query.coords)
    distance = interpolate(cloud, field(cloud.coords), query, "linear") - field(query.coords)
    assert planes.norm() < 0.4 * distance.norm()


def test_a_point_of_the_domain_gets_its_own_value() -> None:
    torch.manual_seed(0)
    cloud, values = Domain(100 * torch.rand(2, 60, 2)), torch.randn(2, 60, 3)
    assert torch.equal(LocalPlanes(cloud, cloud).carry(values), values)


def test_neighbours_without_spread_are_averaged() -> None:
    """Points on a line, twins, and fewer points than a plane needs: shares stay finite."""
    torch.manual_seed(0)
    line = torch.stack((torch.linspace(0, 1, 9), torch.zeros(9)), -1)[None]
    twins = torch.rand(1, 3, 2).repeat(1, 3, 1)
    pair = torch.rand(1, 2, 2)
    query = Domain(torch.cat((torch.rand(1, 30, 2), twins[:, :1], line[:, :3]), 1))
    for coords in (line, twins, pair):
        planes = LocalPlanes(Domain(coords), query)
        assert torch.isfinite(planes.shares).all()
        assert planes.shares.abs().max() < 10
        torch.testing.assert_close(planes.shares.sum(-1), torch.ones(1, 34), rtol=0, atol=1e-4)
    beside = Domain(torch.tensor([[[0.55, 0.3]]]))
    there = LocalPlanes(Domain(line), beside).carry(line[..., :1])
    assert float(there) == pytest.approx(0.55, abs=1e-3)


def test_padding_is_nobodys_neighbour() -> None:
    torch.manual_seed(0)
    coords, values = torch.rand(1, 30, 2), torch.randn(1, 30, 1)
    query = Domain(torch.rand(1, 12, 2))
    mask = torch.arange(30)[None] < 20
    padded = LocalPlanes(Domain(coords, mask=mask), query).carry(values)
    alone = LocalPlanes(Domain(coords[:, :20]), query).carry(values[:, :20])
    torch.testing.assert_close(padded, alone)


def test_chunks_change_nothing_and_times_are_carried_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    cloud, query = Domain(torch.rand(2, 30, 2)), Domain(torch.rand(2, 17, 2))
    series = torch.randn(2, 4, 30, 3)
    planes = LocalPlanes(cloud, query)
    carried = times_as_channels(planes.carry, series)
    assert carried.shape == (2, 4, 17, 3)
    monkeypatch.setattr(local_planes, "_PAIRS_AT_ONCE", 200)
    parts = LocalPlanes(cloud, query)
    torch.testing.assert_close(parts.shares, planes.shares)
    for time in range(4):
        torch.testing.assert_close(parts.carry(series[:, time]), carried[:, time])


def test_gradients_reach_the_values() -> None:
    torch.manual_seed(0)
    cloud, query = Domain(torch.rand(1, 12, 2)), Domain(torch.rand(1, 9, 2))
    values = torch.randn(1, 12, 1, requires_grad=True)
    planes = LocalPlanes(cloud, query)
    planes.carry(values).sum().backward()
    expected = torch.zeros(12).index_add(0, planes.index.flatten(), planes.shares.flatten())
    assert values.grad is not None
    torch.testing.assert_close(values.grad.flatten(), expected)
