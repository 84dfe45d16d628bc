"""What is around the nodes of a mesh."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ono import ONO, Domain, ONOConfig, Problem, calibrate
from ono.errors import UnsupportedDomain
from ono.models.ono_fused import fuse_blocks
from ono.models.ono_stream import stream
from ono.nn.fused_launch import available
from ono.nn.surroundings import Stencil, Surroundings, _moved

SMALL = {"width": 16, "layers": 2, "lower": {"heads": 2}, "eigen": {"heads": 2, "functions": 4}}


def operator(shape: tuple[int, ...] = (9, 7), **options: object) -> ONO:
    torch.manual_seed(0)
    config = ONOConfig.model_validate(SMALL | {"surroundings": 6} | options)
    problem = Problem.grid(shape, in_channels=1, out_channels=1)
    model = ONO(config, problem).double()
    calibrate(model, [inputs(shape)])
    return model.eval()


def inputs(shape: tuple[int, ...], batch: int = 2) -> tuple[Domain, Tensor]:
    domain = Domain.grid(shape, batch=batch, dtype=torch.float64)
    draw = torch.Generator().manual_seed(len(shape))
    waves = torch.randn(batch, 1, 2, generator=draw, dtype=torch.float64)
    return domain, (3 * (waves * domain.coords).sum(-1, keepdim=True)).sin()


@pytest.mark.parametrize("shape", [(7,), (5, 6), (4, 5, 3)])
def test_the_stencil_is_the_same_by_convolution_and_by_interpolation(
    shape: tuple[int, ...],
) -> None:
    torch.manual_seed(1)
    stencil = Stencil(2, 3, shape).double()
    planes = torch.randn(2, 2, *shape, dtype=torch.float64)
    expected = stencil(planes)
    for axis in range(2, planes.ndim):
        planes = torch.cat((_moved(planes, axis, -1.0), planes, _moved(planes, axis, 1.0)), 1)
    assert torch.allclose(stencil.taps(planes.movedim(1, -1)).movedim(-1, 1), expected)


def test_taps_lie_where_a_convolution_has_them() -> None:
    """The weight of one tap alone moves a field by one node."""
    stencil = Stencil(1, 1, (4, 5)).double()
    with torch.no_grad():
        stencil.taps.weight.zero_()
        stencil.taps.bias.zero_()
        stencil.taps.weight[0, 2] = 1.0  # ahead along the first axis, behind along the second
    field = torch.arange(20.0, dtype=torch.float64).reshape(1, 1, 4, 5)
    ahead = F.pad(field, (1, 0, 0, 1), mode="replicate")[..., 1:, :-1]
    assert torch.equal(stencil(field), ahead)


def test_a_finer_mesh_sees_the_same_surroundings() -> None:
    around = Surroundings(Problem.grid((5, 5), in_channels=1, out_channels=1), 4).double()
    grids = [Domain.grid(shape, dtype=torch.float64) for shape in ((5, 5), (9, 9))]
    coarse, fine = (around(grid, grid.coords.sum(-1, keepdim=True)) for grid in grids)
    assert torch.allclose(fine.unflatten(1, (9, 9))[:, ::2, ::2].flatten(1, 2), coarse)


@torch.no_grad()
def test_an_operator_knows_its_surroundings_and_answers_everywhere() -> None:
    model = operator()
    domain, values = inputs((9, 7))
    output = model(domain, values)
    far = values.clone()
    far[:, 8] += 1.0  # two nodes from the first, which attention cannot tell from the others
    assert not torch.allclose(
        model.with_surroundings(domain, far)[:, 0], model.with_surroundings(domain, values)[:, 0]
    )
    assert torch.equal(
        model.with_surroundings(domain, far)[:, -1], model.with_surroundings(domain, values)[:, -1]
    )
    assert torch.allclose(model(domain, values, query=domain), output)
    assert model(domain, values, query=Domain(torch.rand(2, 5, 2).double())).shape == (2, 5, 1)
    assert torch.allclose(stream(model, domain, values, chunk=10), output)
    assert torch.isfinite(model(*inputs((17, 13)))).all()


@torch.no_grad()
def test_the_nodes_of_a_curvilinear_mesh_are_seen() -> None:
    """Its shape may be all that the operator is told."""
    config = ONOConfig.model_validate(SMALL | {"surroundings": 6})
    problem = Problem.grid((9, 7), in_channels=0, out_channels=1, kind="structured")
    model = ONO(config, problem).double()
    domain, _ = inputs((9, 7))
    nothing = torch.zeros(2, 63, 0, dtype=torch.float64)
    calibrate(model, [(domain, nothing)])
    moved = replace(domain, coords=domain.coords + 0.1 * domain.coords[..., :1] ** 2)
    here, there = (model.with_surroundings(place, nothing) for place in (domain, moved))
    assert here.shape == (2, 63, 6)
    assert not torch.allclose(here, there)
    assert model.eval()(moved, nothing).shape == (2, 63, 1)
    assert torch.allclose(stream(model, moved, nothing, chunk=10), model(moved, nothing))
    bare = Problem.grid((9, 7), in_channels=0, out_channels=1)
    with pytest.raises(UnsupportedDomain, match="nothing to tell"):
        ONO(config, bare)


def test_it_is_learned() -> None:
    model = operator().train()
    model(*inputs((9, 7))).square().sum().backward()
    assert model.surroundings is not None
    for parameter in model.surroundings.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


@pytest.mark.gpu
@pytest.mark.skipif(not available(), reason="needs a CUDA device and Triton")
def test_fused_kernels_go_on_from_them() -> None:
    eigen = {"heads": 4, "functions": 16}
    model = operator(width=64, lower={"heads": 4}, eigen=eigen).float().cuda().train()
    domain, values = inputs((9, 7))
    domain = Domain(domain.coords.float().cuda(), domain.shape)
    found = []
    for fused in (False, True):
        assert fuse_blocks(model, fused) == 1
        output = model(domain, values.float().cuda())
        gradients = torch.autograd.grad(output.square().sum(), list(model.parameters()))
        found.append((output.detach(), gradients))
    assert float((found[1][0] - found[0][0]).norm() / found[0][0].norm()) < 1e-5
    for mine, plain in zip(found[1][1], found[0][1], strict=True):
        assert float((mine - plain).norm()) <= 1e-3 * float(plain.norm()) + 1e-6


def test_scattered_points_have_none() -> None:
    config = ONOConfig.model_validate(SMALL | {"surroundings": 6})
    with pytest.raises(UnsupportedDomain, match=r"model\.surroundings needs a grid"):
        ONO(config, Problem(dim=2, in_channels=1, out_channels=1))
    model = operator()
    cloud = Domain(torch.rand(2, 63, 2).double())
    with pytest.raises(UnsupportedDomain, match="queries may lie anywhere"):
        model(cloud, torch.rand(2, 63, 1).double())
