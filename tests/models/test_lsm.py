"""LSM: published sizes, resolution, every kind of domain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import ShapeError, UnsupportedDomain
from ono.models.lsm import LSM
from ono.models.lsm_config import LSMConfig
from ono.nn.cloud_ends import CloudEnds
from ono.problem import Problem

DARCY = Problem.grid((85, 85), in_channels=1, out_channels=1)
NS2D = Problem.grid((64, 64), in_channels=10, out_channels=1)
AIRFOIL = Problem.grid((221, 51), in_channels=0, out_channels=1, kind="structured")
PIPE = Problem.grid((129, 129), in_channels=0, out_channels=1, kind="structured")
PLASTICITY = Problem.grid((101, 31), in_channels=1, out_channels=4, timed=True, kind="structured")
ELASTICITY = Problem(dim=2, in_channels=0, out_channels=1, points=972)


def build(problem: Problem, **options: Any) -> LSM:
    torch.manual_seed(0)
    small = {"width": 8, "scales": 3, "heads": 4, "modes": 3, "latent": 10, "deformation": 8}
    return LSM(LSMConfig.model_validate({**small, **options}), problem).double().eval()


def grid(*shape: int, batch: int = 2) -> Domain:
    return Domain.grid(shape, batch=batch, dtype=torch.float64)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("norm", ["batch", "instance"])
@pytest.mark.parametrize(
    ("problem", "options", "count"),
    [
        (DARCY, {}, 19_187_457),
        (NS2D, {}, 19_188_033),
        (AIRFOIL, {"width": 32}, 4_812_833),
        (PIPE, {"width": 48}, 10_804_913),
        (PLASTICITY, {"width": 32, "position": "logical"}, 13_457_828),
    ],
)
def test_sizes_are_the_published_ones(
    problem: Problem, options: dict[str, Any], count: int, norm: str
) -> None:
    with torch.device("meta"):
        assert size(LSM(LSMConfig.model_validate({**options, "norm": norm}), problem)) == count


def test_size_on_elasticity_is_the_published_one() -> None:
    with torch.device("meta"):
        model = LSM(LSMConfig(width=32), ELASTICITY)
    assert isinstance(model.ends, CloudEnds)
    assert size(model) - size(model.ends.deformation) == 5_992_609


@pytest.mark.parametrize("shape", [(9, 9), (7, 12), (4, 31)])
def test_other_grids_than_in_training_work(shape: tuple[int, int]) -> None:
    model = build(Problem.grid((17, 17), in_channels=1, out_channels=2))
    domain = grid(*shape)
    assert model(domain, noise(2, domain.points, 1)).shape == (2, domain.points, 2)


def test_a_patch_is_a_share_of_the_domain_at_every_resolution() -> None:
    unet = build(Problem.grid((16, 16), in_channels=1, out_channels=1)).unet
    block = unet.blocks[0]
    coarse = noise(1, 8, 16, 16)
    fine = coarse.repeat_interleave(3, 2).repeat_interleave(3, 3)
    seen = block(fine, unet.patch((48, 48)))[..., ::3, ::3]
    torch.testing.assert_close(seen, block(coarse, unet.patch((16, 16))))


def test_times_are_an_axis_of_a_grid() -> None:
    model = build(Problem.grid((6, 5), in_channels=1, out_channels=2, timed=True))
    domain, values = grid(6, 5), noise(2, 30, 1)
    times = torch.linspace(0, 1, 7, dtype=torch.float64).expand(2, -1)
    assert model(domain, values, time=times).shape == (2, 7, 30, 2)
    with pytest.raises(ShapeError, match=r"\[batch time\]"):
        model(domain, values, time=times[:, 0])


@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_padding_points_change_neither_outputs_nor_gradients(norm: str) -> None:
    model = build(Problem(dim=2, in_channels=1, out_channels=1), norm=norm)
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


def test_instance_norm_keeps_samples_apart_in_training() -> None:
    problem = Problem.grid((9, 9), in_channels=1, out_channels=1)
    domain, values = grid(9, 9, batch=3), noise(3, 81, 1)
    apart, mixed = build(problem, norm="instance").train(), build(problem).train()
    torch.testing.assert_close(apart(domain, values)[:1], apart(grid(9, 9, batch=1), values[:1]))
    alone = mixed(grid(9, 9, batch=1), values[:1])
    assert not torch.allclose(mixed(domain, values)[:1], alone, rtol=1e-3)


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
    with pytest.raises(UnsupportedDomain, match="one to three axes, got 4, time among them"):
        build(Problem.grid((4, 4, 4), in_channels=1, out_channels=1, timed=True))
    with pytest.raises(ValidationError, match="width 30 is not a multiple of 8 heads"):
        LSMConfig(width=30)
