"""GNOT: published sizes, its formula, queries, padding, several input functions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ono.domain import Domain
from ono.errors import ShapeError
from ono.models.gnot import GNOT
from ono.models.gnot_config import GNOTConfig
from ono.problem import Problem

CLOUD = Problem(dim=2, in_channels=1, out_channels=2)


def build(problem: Problem = CLOUD, **options: Any) -> GNOT:
    small = {"width": 12, "layers": 2, "heads": 2, "experts": 2}
    torch.manual_seed(0)
    model = GNOT(GNOTConfig.model_validate(small | options), problem).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def cloud(batch: int = 3, points: int = 40, channels: int = 1) -> tuple[Domain, Tensor]:
    generator = torch.Generator().manual_seed(1)
    coords = torch.rand(batch, points, 2, generator=generator, dtype=torch.float64)
    values = torch.randn(batch, points, channels, generator=generator, dtype=torch.float64)
    return Domain(coords), values


@pytest.mark.parametrize(
    ("width", "layers", "experts", "count"),
    [
        (64, 3, 1, 551_172),
        (96, 3, 3, 2_125_066),
        (128, 3, 3, 3_767_306),
        (128, 4, 3, 4_956_685),
        (192, 4, 3, 11_121_421),
        (256, 5, 4, 29_742_613),
    ],
)
def test_parameter_counts_are_published(width: int, layers: int, experts: int, count: int) -> None:
    config = GNOTConfig(width=width, layers=layers, experts=experts)
    with torch.device("meta"):
        model = GNOT(config, Problem(dim=2, in_channels=1, out_channels=1))
    assert sum(p.numel() for p in model.parameters()) == count


def test_it_is_its_written_formula() -> None:
    """Every block in full matrices; x is carried through the blocks, z stays fixed."""

    def attend(attention: Any, x: Tensor, y: Tensor) -> Tensor:
        def heads(part: Tensor) -> Tensor:
            split: Tensor = part.unflatten(-1, (2, 6)).transpose(1, 2)
            return split

        q, k = heads(attention.query(x)).softmax(-1), heads(attention.keys[0](y)).softmax(-1)
        rows = q @ k.mT
        mixed = q + rows / rows.sum(-1, keepdim=True) @ heads(attention.values[0](y))
        out: Tensor = attention.out(mixed.transpose(1, 2).flatten(-2))
        return out

    def perceptron(net: Any, x: Tensor) -> Tensor:
        x = F.gelu(net.lift(x))
        for layer in net.hidden:
            x = x + F.gelu(layer(x))
        out: Tensor = net.project(x)
        return out

    def mixture(experts: Any, x: Tensor, shares: Tensor) -> Tensor:
        parts = torch.stack([expert(x) for expert in experts.experts], -1)
        return (parts * shares[..., None, :]).sum(-1)

    model: Any = build()
    domain, values = cloud()
    x = perceptron(model.trunk, domain.coords)
    z = perceptron(model.branches[0], torch.cat((domain.coords, values), -1))
    for block in model.blocks:
        shares = block.gate.net(domain.coords).softmax(-1)
        x = x + attend(block.cross_attention, block.norm_cross(x), block.norm_inputs[0](z))
        x = x + block.norm_cross_experts(mixture(block.cross_experts, x, shares))
        x = x + attend(block.self_attention, block.norm_self(x), block.norm_self(x))
        x = x + block.norm_self_experts(mixture(block.self_experts, x, shares))
    torch.testing.assert_close(model(domain, values), perceptron(model.head, x))


def test_output_follows_the_order_of_the_points() -> None:
    domain, values = cloud()
    model = build()
    order = torch.randperm(40)
    torch.testing.assert_close(
        model(domain.take(order), values[:, order]), model(domain, values)[:, order]
    )


def test_output_does_not_depend_on_the_order_of_the_inputs_at_queries() -> None:
    domain, values = cloud()
    model = build()
    query = Domain(torch.rand(3, 15, 2, dtype=torch.float64))
    order = torch.randperm(40)
    torch.testing.assert_close(
        model(domain.take(order), values[:, order], query=query), model(domain, values, query=query)
    )


def test_querying_the_input_points_is_the_identity() -> None:
    domain, values = cloud()
    model = build()
    there = model(domain, values, query=Domain(domain.coords))
    torch.testing.assert_close(there, model(domain, values))


@pytest.mark.parametrize("measure", ["mean", "weights"])
def test_padding_changes_neither_outputs_nor_gradients(measure: str) -> None:
    domain, values = cloud()
    model = build(measure=measure)
    weights = torch.rand(3, 40, dtype=torch.float64)
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[0, 25:] = False
    padded = Domain(domain.coords, None, weights, mask)
    junk = torch.where(mask[..., None], values, 1e3).requires_grad_()
    parameters = list(model.parameters())
    together = model(padded, junk)[:1, :25]
    alone = model(Domain(domain.coords[:1, :25], None, weights[:1, :25]), values[:1, :25])
    torch.testing.assert_close(together, alone)
    gradients = torch.autograd.grad(together.square().sum(), [*parameters, junk])
    expected = torch.autograd.grad(alone.square().sum(), parameters)
    for got, wanted in zip(gradients, expected, strict=False):
        torch.testing.assert_close(got, wanted)
    assert not gradients[-1][~mask].any()


def test_padded_queries_are_not_attended() -> None:
    domain, values = cloud()
    model = build()
    coords = torch.rand(3, 20, 2, dtype=torch.float64)
    mask = (torch.arange(20) < 12).expand(3, -1)
    padded = model(domain, values, query=Domain(coords, mask=mask))[:, :12]
    torch.testing.assert_close(padded, model(domain, values, query=Domain(coords[:, :12])))


def test_weights_of_a_refined_region_restore_the_integral() -> None:
    domain, values = cloud()
    model = build(measure="weights")
    repeated = torch.cat((torch.arange(40), torch.arange(20)))
    weights = torch.full((3, 60), 1 / 40, dtype=torch.float64)
    weights[:, :20] = weights[:, 40:] = 1 / 80
    refined = Domain(domain.coords[:, repeated], weights=weights)
    out = model(refined, values[:, repeated])[:, :40]
    torch.testing.assert_close(out, model(domain, values))


def test_channels_can_be_input_functions_of_their_own() -> None:
    problem = Problem(dim=2, in_channels=3, out_channels=1)
    model: Any = build(problem, inputs="separate")
    assert [branch.lift.in_features for branch in model.branches] == [3, 3, 3]
    domain, values = cloud(channels=3)
    assert model(domain, values).shape == (3, 40, 1)
    assert len(build(problem).branches) == 1


@pytest.mark.parametrize("inputs", ["joined", "separate"])
def test_without_input_channels_the_geometry_is_the_input_function(inputs: str) -> None:
    model = build(Problem(dim=2, in_channels=0, out_channels=1), inputs=inputs)
    domain, values = cloud(channels=0)
    query = Domain(domain.coords[:1].expand(3, -1, -1))
    out = model(domain, values, query=query)
    assert out.shape == (3, 40, 1)
    assert not torch.allclose(out[0], out[1])


def test_times_enter_and_can_be_asked_together() -> None:
    model = build(Problem(dim=2, in_channels=1, out_channels=2, timed=True))
    domain, values = cloud()
    query = Domain(torch.rand(3, 40, 2, dtype=torch.float64))
    times = torch.rand(3, 4, dtype=torch.float64)
    together = model(domain, values, query=query, time=times)
    assert together.shape == (3, 4, 40, 2)
    for index in range(4):
        one = model(domain, values, query=query, time=times[:, index])
        torch.testing.assert_close(together[:, index], one)
    assert not torch.allclose(together[:, 0], together[:, 1])


def test_wrong_channels_are_named() -> None:
    domain, values = cloud(channels=2)
    with pytest.raises(ShapeError, match="gnot expected values"):
        build()(domain, values)


@pytest.mark.slow
def test_compiled_model_agrees_with_eager() -> None:
    script = """
import torch
from ono.domain import Domain
from ono.models.gnot import GNOT
from ono.models.gnot_config import GNOTConfig
from ono.problem import Problem
torch.manual_seed(0)
domain, a = Domain.grid((6, 6), batch=2), torch.randn(2, 36, 1)
config = GNOTConfig(width=8, layers=2, heads=2, experts=2, measure="weights")
model = GNOT(config, Problem(dim=2, in_channels=1, out_channels=1))
eager = model(domain, a)
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(domain, a)
assert torch.allclose(eager, compiled, atol=1e-5), (eager - compiled).abs().max()
gradients = [torch.autograd.grad(out.square().sum(), model.trunk.lift.weight)[0]
             for out in (eager, compiled)]
assert torch.allclose(*gradients, rtol=1e-3, atol=1e-6)
with torch.autocast("cpu", torch.bfloat16):
    assert torch.allclose(model(domain, a).float(), eager, atol=0.05, rtol=0.05)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
