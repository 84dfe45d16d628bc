"""Which points are kept, what they stand for, and the way back to all of them."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ono.domain import Domain, trapezoidal
from ono.errors import UnsupportedDomain
from ono.evaluate.thin_mesh import Axis
from ono.evaluate.thinning import Thinning

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


def multilinear(x: Tensor) -> Tensor:
    """Return a function that is linear along each axis: Π (1 + (i + 1) x_i)."""
    factors = 1 + torch.arange(1, x.shape[-1] + 1, dtype=x.dtype) * x
    product: Tensor = factors.prod(-1, keepdim=True)
    return product


@settings(deadline=None, max_examples=25)
@given(shape=SHAPES, every=st.integers(2, 12))
def test_multilinear_functions_come_back_from_grids(shape: tuple[int, ...], every: int) -> None:
    grid = Domain.grid(shape, batch=2, dtype=torch.float64)
    thin = Thinning(every)(grid)
    assert thin.domain.shape == Thinning(every).shape(shape)
    assert thin.domain.points == Thinning(every).kept(grid)
    first, last = (thin.domain.coords[:, end] for end in (0, -1))
    assert torch.equal(first, grid.coords[:, 0])
    assert torch.equal(last, grid.coords[:, -1])
    field = multilinear(grid.coords)
    torch.testing.assert_close(thin.carry(thin.pick(field)), field)


@settings(deadline=None, max_examples=25)
@given(shape=SHAPES, every=st.integers(2, 12), periodic=st.booleans(), seed=st.integers(0, 999))
def test_weights_of_kept_nodes_integrate_what_is_carried(
    shape: tuple[int, ...], every: int, periodic: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(2, math.prod(shape), generator=generator, dtype=torch.float64)
    weights = weights / weights.sum(-1, keepdim=True)
    whole = Domain(Domain.grid(shape, batch=2, dtype=torch.float64).coords, shape, weights)
    thin = Thinning(every, periodic)(whole)
    values = torch.randn(2, thin.domain.points, 1, generator=generator, dtype=torch.float64)
    kept = thin.domain.weights
    assert kept is not None
    torch.testing.assert_close(kept.sum(-1), torch.ones(2, dtype=torch.float64))
    ours, theirs = (kept[..., None] * values).sum(1), weights[..., None] * thin.carry(values)
    torch.testing.assert_close(ours, theirs.sum(1))


def test_the_trapezoidal_rule_stays_one() -> None:
    thin = Thinning(4)(Domain.grid((85, 29)))
    assert thin.domain.weights is not None
    torch.testing.assert_close(thin.domain.weights[0], trapezoidal((22, 8)))


def test_a_periodic_axis_goes_on_from_its_last_node_to_the_first() -> None:
    ring = Axis(6, 2, periodic=True)
    assert ring.kept == (0, 2, 4)
    assert ring.carry(torch.tensor([0.0, 2.0, 4.0])).tolist() == [0, 1, 2, 3, 4, 2]
    uneven = Axis(5, 2, periodic=True)
    assert uneven.kept == (0, 2, 4)
    assert uneven.carry(torch.tensor([0.0, 2.0, 4.0])).tolist() == [0, 1, 2, 3, 4]


def test_kept_nodes_keep_their_bits_and_times_come_along() -> None:
    torch.manual_seed(0)
    grid = Domain.grid((7, 6), batch=2)
    thin = Thinning(3)(grid)
    series = torch.randn(2, 4, thin.domain.points, 3)
    carried = thin.carry(series)
    assert carried.shape == (2, 4, 42, 3)
    assert torch.equal(thin.pick(carried[:, 1]), series[:, 1])
    assert torch.equal(thin.carry(series[:, 2]), carried[:, 2])


def test_a_bent_mesh_is_interpolated_along_its_own_lines() -> None:
    """What is linear in the logical mesh comes back, wherever the nodes lie."""
    even = Domain.grid((9, 7))
    bent = Domain(torch.stack((even.coords[..., 0] ** 3, even.coords.sum(-1)), -1), (9, 7))
    field = multilinear(even.coords)
    thin = Thinning(2)(bent)
    torch.testing.assert_close(thin.carry(thin.pick(field)), field)


def test_queries_at_the_points_get_what_the_points_get() -> None:
    torch.manual_seed(0)
    grid = Domain.grid((7, 8), batch=2)
    bent = Domain(grid.coords + 0.1 * grid.coords.square(), (7, 8))
    cloud = Domain(torch.rand(2, 56, 2))
    for domain in (grid, bent, cloud):
        thin = Thinning(2)(domain)
        for output in (
            torch.randn(2, thin.domain.points, 1),
            torch.randn(2, 3, thin.domain.points, 1),
        ):
            some = Domain(domain.coords[:, 10:20])
            there = thin.carry(output, some)
            torch.testing.assert_close(there, thin.carry(output)[..., 10:20, :], rtol=0, atol=1e-4)


def test_holes_in_a_mesh_are_refused() -> None:
    grid = Domain.grid((5, 5))
    holes = Domain(grid.coords, (5, 5), mask=torch.arange(25)[None] != 7)
    with pytest.raises(UnsupportedDomain, match="without a shape"):
        Thinning(2)(holes)


def ragged(*counts: int, dim: int = 2, seed: int = 0) -> Domain:
    """Return clouds of different sizes whose padding is not zero."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(counts)
    coords = torch.rand(len(counts), longest, dim, generator=generator)
    weights = torch.rand(len(counts), longest, generator=generator)
    mask = torch.arange(longest) < torch.tensor(counts)[:, None]
    coords[~mask], weights[~mask] = 17.0, 0.0
    return Domain(coords, None, weights / weights.sum(-1, keepdim=True), mask)


@settings(deadline=None, max_examples=25)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    every=st.integers(2, 4),
    dim=st.integers(1, 3),
)
def test_clouds_are_thinned_sample_by_sample(counts: list[int], every: int, dim: int) -> None:
    domain = ragged(*counts, dim=dim)
    run = every**dim
    thin = Thinning(every)(domain)
    mask, weights = thin.domain.mask, thin.domain.weights
    assert mask is not None
    assert weights is not None
    assert domain.weights is not None
    assert mask.sum(-1).tolist() == [-(-count // run) for count in counts]
    assert (weights[~mask] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(counts)))
    values = torch.randn(len(counts), max(counts), 2)
    carried = thin.carry(thin.pick(values))
    for row, count in enumerate(counts):
        alone = Domain(
            domain.coords[row : row + 1, :count], None, domain.weights[row : row + 1, :count]
        )
        own = Thinning(every)(alone)
        kept = thin.domain.coords[row][mask[row]]
        assert torch.equal(kept, own.domain.coords[0])
        assert own.domain.weights is not None
        torch.testing.assert_close(weights[row][mask[row]], own.domain.weights[0])
        back = own.carry(own.pick(values[row : row + 1, :count]))
        torch.testing.assert_close(carried[row : row + 1, :count], back, rtol=1e-4, atol=1e-5)


def test_the_kept_points_of_a_cloud_are_even_and_in_their_order() -> None:
    torch.manual_seed(0)
    cloud = Domain(torch.rand(3, 1000, 2), weights=torch.full((3, 1000), 1e-3))
    thin = Thinning(2)(cloud)
    assert thin.domain.points == 250
    assert (thin.index.diff(dim=1) > 0).all()  # type: ignore[union-attr]
    assert thin.domain.weights is not None
    torch.testing.assert_close(thin.domain.weights, torch.full((3, 250), 4e-3))
    gap = torch.cdist(cloud.coords, thin.domain.coords).amin(-1).amax()
    strided = torch.cdist(cloud.coords, cloud.coords[:, ::4]).amin(-1).amax()
    assert gap < 0.9 * strided
    slope = torch.tensor([[1.0], [-2.0]])
    error = thin.carry(thin.pick(cloud.coords @ slope)) - cloud.coords @ slope
    assert error.abs().mean() < 1e-3


def test_the_choice_follows_the_points_in_any_order() -> None:
    torch.manual_seed(0)
    cloud, order = Domain(torch.rand(1, 200, 3)), torch.randperm(200)
    ours, theirs = Thinning(2)(cloud), Thinning(2)(cloud.take(order))
    one, other = (
        {tuple(point) for point in thin.domain.coords[0].tolist()} for thin in (ours, theirs)
    )
    assert one == other


COMPILED = """
import torch
from ono.domain import Domain
from ono.evaluate.thinning import Thinning

def there_and_back(domain, values):
    thin = Thinning(2)(domain)
    return thin.carry(thin.pick(values))

torch.manual_seed(0)
mask = (torch.arange(30) < 25).expand(2, -1)
cloud = Domain(torch.rand(2, 30, 2), weights=torch.rand(2, 30), mask=mask)
for domain in (Domain.grid((5, 6), batch=2), cloud):
    values = torch.randn(2, 30, 2, requires_grad=True)
    one = torch.compile(there_and_back, fullgraph=True, backend="eager")(domain, values)
    torch.testing.assert_close(one, there_and_back(domain, values))
"""


def test_it_can_be_compiled_as_a_whole() -> None:
    """In a process of its own: the hook that checks shapes breaks compilation."""
    environment = {**os.environ, "ONO_TEST_COMPILE": "1"}
    subprocess.run([sys.executable, "-c", COMPILED], check=True, env=environment)
