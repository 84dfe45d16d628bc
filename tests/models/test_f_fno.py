"""F-FNO: published sizes, a non-linear trunk, every kind of domain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import InputError, ShapeError, UnsupportedDomain
from ono.models.f_fno import FFNO
from ono.models.f_fno_config import FFNOConfig
from ono.nn.grid_ends import padded_size
from ono.nn.plain_cloud_ends import PlainCloudEnds
from ono.problem import Problem

AIRFOIL = Problem.grid((221, 51), in_channels=0, out_channels=1, kind="structured")
PIPE = Problem.grid((129, 129), in_channels=0, out_channels=1, kind="structured")
PLASTICITY = Problem.grid((101, 31), in_channels=1, out_channels=4, timed=True, kind="structured")
NS2D_MARKOV = Problem.grid((64, 64), in_channels=1, out_channels=1)
ELASTICITY = Problem(dim=2, in_channels=0, out_channels=1, points=972)


def build(problem: Problem, **options: Any) -> FFNO:
    torch.manual_seed(0)
    small = {"width": 8, "layers": 3, "modes": 3, "latent": 10, "deformation": 8}
    return FFNO(FFNOConfig.model_validate({**small, **options}), problem).double().eval()


def grid(*shape: int, batch: int = 2) -> Domain:
    return Domain.grid(shape, batch=batch, dtype=torch.float64)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("problem", "options", "four", "deep"),
    [
        (AIRFOIL, {"modes": (32, 16)}, 1_715_458, 10_247_938),
        (PIPE, {}, 1_191_170, 7_102_210),
        (PLASTICITY, {"modes": (32, 12, 8), "position": "logical"}, 1_846_920, 11_034_760),
        (NS2D_MARKOV, {"shared": True}, 404_674, 1_072_834),
    ],
)
def test_sizes_are_the_published_ones(
    problem: Problem, options: dict[str, Any], four: int, deep: int
) -> None:
    with torch.device("meta"):
        assert size(FFNO(FFNOConfig(**options), problem)) == four
        assert size(FFNO(FFNOConfig(layers=24, **options), problem)) == deep


@pytest.mark.parametrize(("layers", "published"), [(4, 5_052_545), (24, 10_713_985)])
def test_size_on_elasticity_is_the_published_one_without_its_unused_layers(
    layers: int, published: int
) -> None:
    with torch.device("meta"):
        model = FFNO(FFNOConfig(layers=layers, ffn_factor=2), ELASTICITY)
    unused = (layers - 1) * (64 * 64 + 64)  # 1 x 1 convolutions that are made and never called
    assert isinstance(model.ends, PlainCloudEnds)
    assert size(model) - size(model.ends.deformation) == published - unused


@pytest.mark.parametrize(
    ("nodes", "share"),
    [(85, 0.107), (221, 0.041), (51, 0.18), (129, 0.07), (101, 0.09), (31, 0.3), (20, 0.474)],
)
def test_padding_of_the_recipes_is_eight_nodes(nodes: int, share: float) -> None:
    assert padded_size(nodes, share) == nodes + 8


def test_model_is_its_formula_on_a_periodic_grid() -> None:
    model = build(Problem.grid((6, 5), in_channels=1, out_channels=2), padding=0.0)
    domain, values = grid(6, 5), noise(2, 30, 1)
    z = model.lift(torch.cat((values, domain.coords), -1)).unflatten(1, (6, 5))
    for filter, ffn in zip(model.blocks.filters, model.blocks.ffns, strict=True):
        b = ffn(filter(z))
        z = z + b
    torch.testing.assert_close(model(domain, values), model.head(b).flatten(1, 2))


@pytest.mark.parametrize("kind", ["grid", "cloud"])
def test_trunk_is_not_linear(kind: str) -> None:
    domain = grid(9, 9)
    problem = Problem.grid((9, 9), in_channels=1, out_channels=1)
    if kind == "cloud":
        domain, problem = Domain(domain.coords), Problem(dim=2, in_channels=1, out_channels=1)
    model = build(problem)
    a, b = noise(4, 81, 1).chunk(2)
    nothing = model(domain, torch.zeros_like(a))  # an affine map would make this difference zero
    bend = model(domain, a + b) - model(domain, a) - model(domain, b) + nothing
    assert bend.norm() > 1e-3 * model(domain, a).norm()


@pytest.mark.parametrize("shape", [(9, 9), (7, 12), (4, 31)])
def test_other_grids_than_in_training_work(shape: tuple[int, int]) -> None:
    model = build(Problem.grid((17, 17), in_channels=1, out_channels=2))
    domain = grid(*shape)
    assert model(domain, noise(2, domain.points, 1)).shape == (2, domain.points, 2)


def test_the_same_function_on_a_finer_periodic_grid_gives_the_same_output() -> None:
    def on(n: int) -> Tensor:
        axis = torch.arange(n, dtype=torch.float64) / n
        coords = torch.cartesian_prod(axis, axis)[None]
        waves = torch.sin(2 * torch.pi * coords)
        output: Tensor = model(Domain(coords, (n, n)), waves).unflatten(1, (n, n))
        return output

    problem = Problem.grid((12, 12), in_channels=2, out_channels=1)
    model = build(problem, padding=0.0, layers=1)
    with torch.no_grad():  # coordinates are not periodic; one layer has no aliasing
        dict(model.lift.named_parameters())["parametrizations.weight.original1"][:, 2:] = 0
    torch.testing.assert_close(on(36)[:, ::3, ::3], on(12))


def test_times_are_an_axis_of_a_grid() -> None:
    model = build(Problem.grid((6, 5), in_channels=1, out_channels=2, timed=True))
    domain, values = grid(6, 5), noise(2, 30, 1)
    times = torch.linspace(0, 1, 7, dtype=torch.float64).expand(2, -1)
    assert model(domain, values, time=times).shape == (2, 7, 30, 2)
    with pytest.raises(ShapeError, match=r"\[batch time\]"):
        model(domain, values, time=times[:, 0])


def test_times_are_an_input_of_a_cloud() -> None:
    model = build(Problem(dim=2, in_channels=1, out_channels=2, timed=True))
    domain, values = Domain(torch.rand(2, 20, 2).double()), noise(2, 20, 1)
    times = torch.rand(2, 3).double()
    together = model(domain, values, time=times)
    for index in range(3):
        one = model(domain, values, time=times[:, index])
        torch.testing.assert_close(together[:, index], one)


def test_padding_points_change_neither_outputs_nor_gradients() -> None:
    model = build(Problem(dim=2, in_channels=1, out_channels=1))
    coords, values = torch.rand(2, 30, 2).double(), noise(2, 30, 1)
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[0, 22:] = False
    padded = torch.where(mask[..., None], values, 1e3)
    alone = model(Domain(coords[:1, :22]), values[:1, :22])
    together = model(Domain(coords, mask=mask), padded)[:1, :22]
    torch.testing.assert_close(together, alone)
    weights = list(model.parameters())
    ours = torch.autograd.grad(together.square().sum(), weights)
    for mine, theirs in zip(ours, torch.autograd.grad(alone.square().sum(), weights), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_queries_are_native_on_clouds_and_interpolated_on_grids() -> None:
    cloud, values = Domain(torch.rand(2, 30, 2).double()), noise(2, 30, 1)
    model = build(Problem(dim=2, in_channels=1, out_channels=1))
    order = torch.tensor([4, 0, 17])
    there = model(cloud, values, query=cloud.take(order))
    torch.testing.assert_close(there, model(cloud, values)[:, order])

    nodes, values = grid(5, 5), noise(2, 25, 1)
    model = build(Problem.grid((5, 5), in_channels=1, out_channels=1))
    middle = Domain((nodes.coords[:, :1] + nodes.coords[:, 1:2]) / 2)
    expected = model(nodes, values)[:, :2].mean(1, keepdim=True)
    torch.testing.assert_close(model(nodes, values, query=middle), expected)


def test_refusals_say_what_to_do() -> None:
    model = build(Problem.grid((5, 5), in_channels=1, out_channels=1))
    with pytest.raises(UnsupportedDomain, match="give the domain its shape"):
        model(Domain(grid(5, 5).coords), noise(2, 25, 1))
    with pytest.raises(InputError, match="one number, or one an axis"):
        build(Problem.grid((5, 5), in_channels=1, out_channels=1), modes=(3, 3, 3))
    with pytest.raises(InputError, match="at least 32 nodes"):
        build(Problem(dim=2, in_channels=1, out_channels=1), modes=16, latent=30)
