"""The kernels of lifting and head against the modules that define them."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE, EXACT, KERNELS, ON_GPU
from torch import Tensor, nn

from ono.nn.fused_ends import Lifting, can_lift, lifted, projected
from ono.nn.mlp import Lift

pytestmark = KERNELS

PRECISIONS = [(EXACT, 1e-6)]
if ON_GPU:
    PRECISIONS += [("bf16x3", 1e-4), ("bf16", 1e-2)]
MANY = 20_011 if ON_GPU else 301


def distance(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours.double() - theirs).detach().norm() / theirs.detach().norm())


@pytest.mark.parametrize(("width", "inputs"), [(128, 19), (64, 3), (128, 40)])
@pytest.mark.parametrize(("precision", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("streams", [True, False] if ON_GPU else [False])
def test_lifting_is_two_networks(
    width: int, inputs: int, precision: str, tolerance: float, streams: bool
) -> None:
    torch.manual_seed(0)
    networks = [Lift(inputs, 2 * width, width).to(DEVICE) for _ in range(2)]
    x = torch.randn(3, MANY // 28, inputs, device=DEVICE)
    found = lifted(networks, x, Lifting(precision, streams))
    exact = [Lift(inputs, 2 * width, width).to(DEVICE).double() for _ in range(2)]
    for twin, network in zip(exact, networks, strict=True):
        twin.load_state_dict(network.state_dict())
    expected = [twin(x.double()) for twin in exact]
    given = [torch.randn_like(out) for out in found]
    ours = torch.autograd.grad(found, [p for n in networks for p in n.parameters()], given)
    theirs = torch.autograd.grad(
        expected, [p for n in exact for p in n.parameters()], [g.double() for g in given]
    )
    # What is lifted keeps the digits of TF32 in every precision.
    for a, b in zip(found, expected, strict=True):
        assert distance(a, b) < min(tolerance, 1e-4)
    for a, b in zip(ours, theirs, strict=True):
        assert distance(a, b) < tolerance


def test_inputs_that_were_computed_are_not_lifted_here() -> None:
    assert can_lift(torch.ones(1, 2, 63))
    assert not can_lift(torch.ones(1, 2, 64))
    assert not can_lift(torch.ones(1, 2, 3, requires_grad=True))


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("points", [5, MANY])
def test_the_head_is_a_norm_and_a_layer(outputs: int, width: int, points: int) -> None:
    torch.manual_seed(0)
    norm, layer = nn.LayerNorm(width).to(DEVICE), nn.Linear(width, outputs).to(DEVICE)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    h = torch.randn(2, points, width, device=DEVICE, requires_grad=True)
    found = projected(norm, layer, h)
    given = torch.randn_like(found)
    inputs = [h, norm.weight, norm.bias, layer.weight, layer.bias]
    ours = torch.autograd.grad(found, inputs, given)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    unit = nn.functional.layer_norm(exact[0], (width,), exact[1], exact[2])
    expected = nn.functional.linear(unit, exact[3], exact[4])
    theirs = torch.autograd.grad(expected, exact, given.double())
    assert distance(found, expected) < 1e-6
    for a, b in zip(ours, theirs, strict=True):
        assert distance(a, b) < 1e-5
