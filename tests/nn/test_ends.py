"""The ends between points and the grid a trunk works on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ono.domain import Domain
from ono.errors import InputError, ShapeError, UnsupportedDomain
from ono.nn.cloud_ends import CloudEnds
from ono.nn.ends import ends_for
from ono.nn.grid_ends import GridEnds, padded_size
from ono.nn.spectral import SpectralConv
from ono.problem import Problem


def grid_problem(shape: tuple[int, ...], **options: Any) -> Problem:
    return Problem.grid(shape, **{"in_channels": 1, "out_channels": 1, **options})


def through(ends: torch.nn.Module, domain: Domain, values: Tensor, **options: Any) -> Tensor:
    """Carry the features through without changing them."""
    same = torch.nn.Identity()
    output: Tensor = ends(domain, values, **{"lift": same, "trunk": same, "head": same, **options})
    return output


def test_features_come_back_at_their_nodes() -> None:
    ends = ends_for("m", grid_problem((5, 4)), width=8, modes=2, padding=0.5)
    domain, values = Domain.grid((5, 4), batch=2), torch.randn(2, 20, 1)
    assert ends.inputs == 3
    torch.testing.assert_close(
        through(ends, domain, values), torch.cat((values, domain.coords), -1)
    )


@pytest.mark.parametrize(("position", "inputs"), [("mesh", 5), ("logical", 3)])
def test_a_structured_mesh_tells_the_logical_place(position: Any, inputs: int) -> None:
    problem = grid_problem((5, 4), kind="structured")
    ends = ends_for("m", problem, width=8, modes=2, position=position)
    domain = Domain(torch.rand(2, 20, 2), (5, 4))
    seen = through(ends, domain, torch.randn(2, 20, 1))
    assert seen.shape[-1] == ends.inputs == inputs
    torch.testing.assert_close(seen[..., -2:], Domain.grid((5, 4), batch=2).coords)


def test_times_are_the_last_axis() -> None:
    ends = ends_for("m", grid_problem((5, 4), timed=True), width=8, modes=2, padding=0.5)
    domain, values = Domain.grid((5, 4), batch=2), torch.randn(2, 20, 1)
    time = torch.rand(2, 3)
    sizes: list[torch.Size] = []

    def trunk(v: Tensor) -> Tensor:
        sizes.append(v.shape)
        return v

    seen = through(ends, domain, values, time=time, trunk=trunk)
    assert sizes == [(2, 4, 6, 5, 3)]
    assert seen.shape == (2, 3, 20, 4)
    for moment in range(3):
        torch.testing.assert_close(seen[:, moment, :, :1], values)
        torch.testing.assert_close(seen[:, moment, :, 1:3], domain.coords)
        torch.testing.assert_close(seen[:, moment, :, 3], time[:, moment, None].expand(2, 20))
    query = Domain(domain.coords[:, [3, 7, 11]])
    there = through(ends, domain, values, time=time, query=query)
    torch.testing.assert_close(there, seen[:, :, [3, 7, 11]])
    with pytest.raises(ShapeError, match=r"together as \[batch time\]"):
        through(ends, domain, values, time=time[:, 0])


def test_padding_means_the_same_at_every_resolution() -> None:
    share = 10 / 84  # 9 nodes beside 85
    assert padded_size(85, share) == 94
    for nodes in (43, 169, 337, 421):
        assert padded_size(nodes, share) / (nodes - 1) == pytest.approx(94 / 84, abs=0.5 / nodes)
    assert [padded_size(n, 0.0, 16) for n in (16, 17, 85)] == [16, 32, 96]
    assert padded_size(2, 0.01) == 2


def test_a_trunk_sees_the_padded_grid_with_zeros_at_the_end() -> None:
    ends = ends_for(
        "m", grid_problem((5, 4)), width=8, modes=2, padding=(0.5, 0.0), multiple=(1, 3)
    )
    seen: list[Tensor] = []

    def trunk(v: Tensor) -> Tensor:
        seen.append(v)
        return v

    through(ends, Domain.grid((5, 4)), torch.ones(1, 20, 1), trunk=trunk)
    assert seen[0].shape == (1, 3, 6, 6)
    assert seen[0][:, 0, :5, :4].all()
    assert not seen[0][:, :, 5:].any()
    assert not seen[0][:, :, :, 4:].any()


def test_masked_nodes_are_holes() -> None:
    ends = ends_for("m", grid_problem((5, 4)), width=8, modes=2)
    domain = Domain.grid((5, 4))
    mask = torch.ones(1, 20, dtype=torch.bool)
    mask[0, 7] = False
    values = torch.randn(1, 20, 1)
    outputs = []
    for hidden in (0.0, 1e3):
        values[0, 7] = hidden
        smooth = SpectralConv(3, 3, (2, 2))
        torch.nn.init.ones_(smooth.weight)
        outputs.append(
            through(ends, Domain(domain.coords, (5, 4), mask=mask), values, trunk=smooth)
        )
    torch.testing.assert_close(outputs[0], outputs[1])


def test_numbers_for_the_wrong_axes_are_refused() -> None:
    with pytest.raises(InputError, match=r"m got padding .* its grid has 3"):
        ends_for("m", grid_problem((5, 4), timed=True), width=8, modes=2, padding=(0.1, 0.1))
    with pytest.raises(InputError, match="latent grid of at least 24 nodes"):
        ends_for("m", Problem(2, 1, 1), width=8, modes=12, latent=20)
    ends = ends_for("m", grid_problem((5, 4)), width=8, modes=2)
    with pytest.raises(UnsupportedDomain, match="20 scattered points"):
        through(ends, Domain(torch.rand(1, 20, 2)), torch.zeros(1, 20, 1))
    with pytest.raises(UnsupportedDomain, match="mesh of 2 axes"):
        through(ends, Domain(torch.rand(1, 20, 2), (20,)), torch.zeros(1, 20, 1))


def cloud_ends(**options: Any) -> CloudEnds:
    torch.manual_seed(0)
    problem = Problem(dim=2, in_channels=1, out_channels=1, **options)
    ends = ends_for("m", problem, width=6, modes=3, latent=8, deformation_width=8)
    assert isinstance(ends, CloudEnds)
    for weight in (ends.r_in, ends.r_out):
        torch.nn.init.normal_(weight, std=0.3)
    return ends.double()


def cloud_nets(ends: CloudEnds) -> dict[str, Any]:
    torch.manual_seed(1)
    lift = torch.nn.Linear(ends.inputs, 6).double()
    return {"lift": lift, "trunk": torch.tanh, "head": torch.nn.Identity()}


def test_cloud_ends_are_their_formula() -> None:
    """K_out trunk(σ(K_in h + B ξ)) + B x with every sum written out."""
    ends = cloud_ends()
    nets = cloud_nets(ends)
    x, a = torch.rand(1, 9, 2).double(), torch.randn(1, 9, 1).double()
    h = nets["lift"](torch.cat((x, a), -1))[0]
    xi = ends.deformation(x)[0]
    numbers = torch.cartesian_prod(torch.tensor([0, 1, 2, -3, -2, -1]), torch.arange(3)).double()
    twice = torch.where(numbers[:, 1] == 0, 1.0, 2.0)
    r_in, r_out = (torch.view_as_complex(r).flatten(0, 1) for r in (ends.r_in, ends.r_out))

    def waves(at: Tensor) -> Tensor:
        return torch.exp(2j * torch.pi * (at @ numbers.T))

    nodes = ends.place.flatten(1).T
    modes = torch.einsum("pk,pi,kio->ko", waves(xi).conj() / 9, h + 0j, r_in)
    v = (waves(nodes) @ (twice[:, None] * modes)).real + ends.coords_in(nodes)
    v = torch.tanh(torch.nn.functional.gelu(v))
    modes = torch.einsum("pk,pi,kio->ko", waves(nodes).conj() / 64, v + 0j, r_out)
    expected = (waves(xi) @ (twice[:, None] * modes)).real + ends.coords_out(x[0])
    torch.testing.assert_close(ends(Domain(x), a, **nets)[0], expected)


def test_cloud_padding_changes_neither_outputs_nor_gradients() -> None:
    ends = cloud_ends()
    nets = cloud_nets(ends)
    x, a = torch.rand(2, 12, 2).double(), torch.randn(2, 12, 1).double()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, 9:] = False
    a[0, 9:] = 1e3
    padded = ends(Domain(x, mask=mask), a, **nets)[0, :9]
    alone = ends(Domain(x[:1, :9]), a[:1, :9], **nets)[0]
    torch.testing.assert_close(padded, alone)
    ours, theirs = (
        torch.autograd.grad(out.square().sum(), list(ends.parameters())) for out in (padded, alone)
    )
    torch.testing.assert_close(ours, theirs)


def test_cloud_queries_are_native_and_weights_count() -> None:
    ends = cloud_ends()
    nets = cloud_nets(ends)
    x, a = torch.rand(2, 12, 2).double(), torch.randn(2, 12, 1).double()
    whole = ends(Domain(x), a, **nets)
    torch.testing.assert_close(ends(Domain(x), a, query=Domain(x[:, 3:7]), **nets), whole[:, 3:7])
    again = torch.cat((torch.arange(12), torch.arange(6)))
    weights = torch.full((2, 18), 1 / 12).double()
    weights[:, :6] = weights[:, 12:] = 1 / 24
    refined = ends(Domain(x[:, again], weights=weights), a[:, again], **nets)
    torch.testing.assert_close(refined[:, :12], whole)


def test_cloud_times_are_samples_of_their_own() -> None:
    ends = cloud_ends(timed=True)
    nets = cloud_nets(ends)
    x, a = torch.rand(2, 12, 2).double(), torch.randn(2, 12, 1).double()
    time = torch.rand(2, 3).double()
    together = ends(Domain(x), a, time=time, **nets)
    assert together.shape == (2, 3, 12, 6)
    for moment in range(3):
        one = ends(Domain(x), a, time=time[:, moment], **nets)
        torch.testing.assert_close(together[:, moment], one)


def test_kinds_of_ends() -> None:
    assert isinstance(ends_for("m", grid_problem((4, 4)), width=4, modes=2), GridEnds)
    problem = Problem(dim=3, in_channels=0, out_channels=1)
    ends = ends_for("m", problem, width=4, modes=2, latent=4, deformation_width=4)
    assert (ends.axes, ends.inputs) == (3, 3)
    out = ends(
        Domain(torch.rand(2, 9, 3)),
        torch.zeros(2, 9, 0),
        lift=torch.nn.Linear(3, 4),
        trunk=torch.nn.Identity(),
        head=torch.nn.Linear(4, 1),
    )
    assert out.shape == (2, 9, 1)
