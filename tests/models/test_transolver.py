"""Transolver: released sizes, meshes of any size, queries, times and refusals."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from ono.domain import Domain
from ono.errors import ShapeError, UnsupportedDomain
from ono.models.transolver import Transolver
from ono.models.transolver_config import TransolverConfig
from ono.nn.interpolation import interpolate
from ono.problem import Problem

CLOUD = Problem(dim=2, in_channels=1, out_channels=2)
GRID = Problem.grid((6, 5), in_channels=1, out_channels=2)


def build(problem: Problem, **options: Any) -> Transolver:
    torch.manual_seed(0)
    small = {"width": 8, "layers": 2, "heads": 2, "slices": 3, "reference": 3, **options}
    model = Transolver(TransolverConfig.model_validate(small), problem).double().eval()
    for name, parameter in model.named_parameters():  # leave the small start so that layers matter
        if not name.endswith("temperature"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def cloud(batch: int = 3, points: int = 20, channels: int = 1) -> tuple[Domain, Tensor]:
    torch.manual_seed(1)
    coords = torch.rand(batch, points, 2, dtype=torch.float64)
    return Domain(coords), torch.randn(batch, points, channels, dtype=torch.float64)


# Parameters of the released scripts.
@pytest.mark.parametrize(
    ("shape", "kind", "inputs", "outputs", "options", "count"),
    [
        ((85, 85), "grid", 1, 1, {}, 2_826_945),
        ((64, 64), "grid", 10, 1, {"width": 256, "slices": 32}, 11_232_321),
        ((221, 51), "structured", 0, 1, {"position": "coords"}, 2_810_817),
        ((129, 129), "structured", 0, 1, {"position": "coords", "ffn_ratio": 2}, 3_073_985),
        ((101, 31), "structured", 1, 4, {"position": "coords"}, 2_844_484),
        (None, "cloud", 0, 1, {"position": "coords"}, 713_665),
    ],
)
def test_released_parameter_counts(
    shape: tuple[int, ...] | None,
    kind: Literal["grid", "structured", "cloud"],
    inputs: int,
    outputs: int,
    options: dict[str, Any],
    count: int,
) -> None:
    problem = Problem(2, inputs, outputs, timed=outputs == 4, kind=kind, shape=shape)
    with torch.device("meta"):
        model = Transolver(TransolverConfig.model_validate(options), problem)
    assert sum(p.numel() for p in model.parameters()) == count


def test_unified_position_is_the_distance_to_a_reference_grid() -> None:
    model, (domain, values) = build(CLOUD), cloud()
    told: list[Tensor] = []
    model.lift.register_forward_pre_hook(lambda _m, args: told.append(args[0]))
    model(domain, values)
    axis = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    for index, node in enumerate(torch.cartesian_prod(axis, axis)):
        distance = (domain.coords - node).square().sum(-1).sqrt()
        assert torch.allclose(told[0][..., index], distance)
    assert torch.equal(told[0][..., 9:], values)


def test_one_model_serves_meshes_of_any_size() -> None:
    model = build(GRID)
    for shape in ((6, 5), (9, 7), (13, 4)):
        domain = Domain.grid(shape, batch=2, dtype=torch.float64)
        values = torch.randn(2, domain.points, 1, dtype=torch.float64)
        assert model(domain, values).shape == (2, domain.points, 2)
    with pytest.raises(UnsupportedDomain, match="mesh of 2 axes, got 20 scattered points"):
        model(*cloud())
    with pytest.raises(ShapeError, match=r"2 axes, got 1: \(20,\)"):
        model(Domain(cloud()[0].coords, (20,)), cloud()[1])


def test_points_without_convolutions_have_no_order() -> None:
    model, (domain, values) = build(CLOUD), cloud()
    order = torch.randperm(20)
    expected = model(domain, values)[:, order]
    assert torch.allclose(model(domain.take(order), values[:, order]), expected)
    twice = Domain(torch.cat((domain.coords, domain.coords), 1))
    out = model(twice, torch.cat((values, values), 1))[:, :20]
    assert torch.allclose(out, model(domain, values), atol=1e-7)


def test_padding_changes_nothing_at_real_points() -> None:
    model, (domain, values) = build(CLOUD), cloud()
    mask = torch.ones(3, 20, dtype=torch.bool)
    mask[0, 13:] = False
    padded = model(Domain(domain.coords, mask=mask), torch.where(mask[..., None], values, 1e3))
    alone = model(Domain(domain.coords[:1, :13]), values[:1, :13])
    assert torch.allclose(padded[:1, :13], alone)
    assert torch.allclose(padded[1:], model(domain, values)[1:])


@pytest.mark.parametrize("timed", [False, True])
def test_queries_of_a_cloud_continue_the_flow(timed: bool) -> None:
    problem = Problem(dim=2, in_channels=1, out_channels=2, timed=timed)
    model, (domain, values) = build(problem), cloud()
    time = torch.rand(3, 4, dtype=torch.float64) if timed else None
    here = model(domain, values, time=time)
    there = model(domain, values, query=Domain(domain.coords), time=time)
    assert torch.allclose(there, here)
    query = torch.rand(3, 9, 2, dtype=torch.float64)
    whole = model(domain, values, query=Domain(query), time=time)
    _, seen = model.encode(domain, values, time=time)
    parts = [model.decode(seen, domain, values, Domain(q), time=time) for q in query.split(4, 1)]
    assert torch.allclose(torch.cat(parts, -2), whole)


@pytest.mark.parametrize("timed", [False, True])
def test_queries_of_a_mesh_interpolate_the_output(timed: bool) -> None:
    problem = Problem.grid((6, 5), in_channels=1, out_channels=2, timed=timed)
    model, domain = build(problem), Domain.grid((6, 5), batch=2, dtype=torch.float64)
    values = torch.randn(2, 30, 1, dtype=torch.float64)
    time = torch.rand(2, 3, dtype=torch.float64) if timed else None
    query = Domain(torch.rand(2, 9, 2, dtype=torch.float64))
    output, there = model(domain, values, time=time), model(domain, values, query=query, time=time)
    for index in range(3 if timed else 1):
        at = (slice(None), index) if timed else (slice(None),)
        expected = interpolate(domain, output[at], query, "linear")
        assert torch.allclose(there[at], expected)


@pytest.mark.parametrize("problem", [CLOUD, GRID])
def test_several_times_are_several_calls(problem: Problem) -> None:
    timed = Problem(2, 1, 2, timed=True, kind=problem.kind, shape=problem.shape)
    model, (domain, values) = build(timed), cloud(points=30)
    domain = Domain(domain.coords, problem.shape)
    times = torch.rand(3, 4, dtype=torch.float64)
    together = model(domain, values, time=times)
    assert together.shape == (3, 4, 30, 2)
    for index in range(4):
        assert torch.allclose(together[:, index], model(domain, values, time=times[:, index]))
    assert not torch.allclose(together[:, 0], together[:, 1])


def test_convolutions_can_be_left_out_on_a_grid() -> None:
    model = build(GRID, convolution=False, position="coords")
    domain = Domain.grid((6, 5), batch=2, dtype=torch.float64)
    values = torch.randn(2, 30, 1, dtype=torch.float64)
    cloud_of_it = Domain(domain.coords, None, domain.weights)
    assert torch.allclose(model(domain, values), model(cloud_of_it, values))


def test_quadrature_weights_restore_the_integral_of_a_refined_region() -> None:
    model, (domain, values) = build(CLOUD, measure="weights"), cloud()
    weights = torch.full((3, 20), 1 / 20, dtype=torch.float64)
    repeated = torch.cat((torch.arange(20), torch.arange(10)))
    halved = torch.cat((weights[:, :10] / 2, weights[:, 10:], weights[:, :10] / 2), 1)
    refined = Domain(domain.coords[:, repeated], weights=halved)
    out = model(refined, values[:, repeated])[:, :20]
    assert torch.allclose(out, model(domain, values), atol=1e-7)
