"""Geo-FNO on its three kinds of domain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ono.domain import Domain
from ono.models.fno import FNO
from ono.models.fno_config import FNOConfig
from ono.models.geo_fno import GeoFNO
from ono.models.geo_fno_config import GeoFNOConfig
from ono.problem import Problem

AIRFOIL = Problem.grid((221, 51), in_channels=0, out_channels=1, kind="structured")
PIPE = Problem.grid((129, 129), in_channels=0, out_channels=1, kind="structured")
PLASTICITY = Problem.grid((101, 31), in_channels=1, out_channels=4, kind="structured", timed=True)
ELASTICITY = Problem(dim=2, in_channels=0, out_channels=1, points=972)


def cloud_model(*, inputs: int = 1, timed: bool = False) -> GeoFNO:
    torch.manual_seed(0)
    problem = Problem(dim=2, in_channels=inputs, out_channels=2, timed=timed)
    config = GeoFNOConfig(width=8, layers=3, modes=3, latent=8, deformation=8)
    model = GeoFNO(config, problem).double()
    for parameter in model.parameters():
        if parameter.ndim > 3:  # leave the small start of the modes, so that they matter
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def cloud(points: int = 30) -> tuple[Domain, Tensor]:
    torch.manual_seed(1)
    return Domain(torch.rand(3, points, 2).double()), torch.randn(3, points, 1).double()


@pytest.mark.parametrize(
    ("problem", "options", "count"),
    [
        (AIRFOIL, {"modes": (24, 12)}, 4_727_329),
        (PIPE, {}, 2_368_033),
        (PLASTICITY, {"modes": (12, 12, 8), "position": "logical"}, 37_757_860),
        (ELASTICITY, {}, 2_957_217 + 62_370),
    ],
)
def test_parameters_are_as_many_as_published(
    problem: Problem, options: dict[str, Any], count: int
) -> None:
    """The deformation is the published one of 63,746 less the layer for a boundary code."""
    with torch.device("meta"):
        model = GeoFNO(GeoFNOConfig.model_validate(options), problem)
    assert sum(p.numel() for p in model.parameters()) == count


def test_on_a_grid_it_is_fno() -> None:
    problem = Problem.grid((9, 8), in_channels=1, out_channels=1)
    options: dict[str, Any] = {"width": 8, "layers": 2, "modes": 3}
    fno, ours = FNO(FNOConfig(**options), problem), GeoFNO(GeoFNOConfig(**options), problem)
    ours.load_state_dict(fno.state_dict())
    domain, a = Domain.grid((9, 8), batch=2), torch.randn(2, 72, 1)
    torch.testing.assert_close(ours(domain, a), fno(domain, a))


def test_a_structured_mesh_is_told_where_its_nodes_lie() -> None:
    problem = Problem.grid((9, 8), in_channels=0, out_channels=1, kind="structured")
    model = GeoFNO(GeoFNOConfig(width=8, modes=3), problem)
    coords, nothing = torch.rand(1, 72, 2), torch.zeros(1, 72, 0)
    here, there = (model(Domain(x, (9, 8)), nothing) for x in (coords, coords**2))
    assert not torch.allclose(here, there)
    finer = Domain(torch.rand(2, 17 * 11, 2), (17, 11))
    assert model(finer, torch.zeros(2, 187, 0)).shape == (2, 187, 1)


def test_output_follows_the_order_of_the_points() -> None:
    model, (domain, a), order = cloud_model(), cloud(), torch.randperm(30)
    torch.testing.assert_close(model(domain.take(order), a[:, order]), model(domain, a)[:, order])


def test_padding_and_batch_mates_change_nothing() -> None:
    model, (domain, a) = cloud_model(), cloud()
    mask = torch.ones(3, 30, dtype=torch.bool)
    mask[0, 20:] = False
    together = model(Domain(domain.coords, mask=mask), torch.where(mask[..., None], a, 1e3))
    alone = model(Domain(domain.coords[:1, :20]), a[:1, :20])
    torch.testing.assert_close(together[:1, :20], alone)


def test_queries_are_evaluated_where_they_are() -> None:
    model, (domain, a) = cloud_model(), cloud()
    torch.testing.assert_close(model(domain, a, query=domain), model(domain, a))
    query = torch.rand(3, 11, 2).double()
    whole = model(domain, a, query=Domain(query))
    parts = [model(domain, a, query=Domain(q)) for q in (query[:, :4], query[:, 4:])]
    torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_more_points_of_a_function_converge() -> None:
    def on(n: int) -> Tensor:
        middles = (torch.arange(n).double() + 0.5) / n
        x = torch.cartesian_prod(middles, middles)[None]
        out: Tensor = model(Domain(x), torch.sin(3 * x[..., :1]), query=probe)
        return out.detach()

    model, probe = cloud_model(), Domain(torch.rand(1, 5, 2).double())
    fine = on(64)
    errors = [float((on(n) - fine).norm()) for n in (4, 8, 16)]
    assert errors[2] < errors[1] / 2 < errors[0] / 4


def test_times_of_a_cloud() -> None:
    model, (domain, a) = cloud_model(timed=True), cloud()
    time = torch.rand(3, 4).double()
    out = model(domain, a, time=time)
    assert out.shape == (3, 4, 30, 2)
    torch.testing.assert_close(out[:, 2], model(domain, a, time=time[:, 2]))
    torch.testing.assert_close(model(domain, a, time=time, query=domain), out)


def test_bfloat16_stays_near_float32() -> None:
    model, (domain, a) = cloud_model().float(), cloud()
    domain, a = Domain(domain.coords.float()), a.float()
    with torch.autocast("cpu", torch.bfloat16):
        half = model(domain, a)
    torch.testing.assert_close(half.float(), model(domain, a), rtol=0.05, atol=0.02)
