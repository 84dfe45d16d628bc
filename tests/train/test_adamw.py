from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE, KERNELS, ON_GPU
from torch import Tensor, nn

from ono.train.adamw import FlatAdamW

pytestmark = KERNELS


def steps(optimiser: torch.optim.AdamW, numbers: range, longest: float | None) -> list[Tensor]:
    """Take some steps, the fourth of them skipped; return the weights after each."""
    (weight,) = optimiser.param_groups[0]["params"]
    seen = []
    for number in numbers:
        draw = torch.Generator().manual_seed(number)
        weight.grad = 3 * torch.randn(len(weight), generator=draw).to(DEVICE)
        losses = torch.tensor([1.0, 2.0, torch.nan if number == 3 else 3.0], device=DEVICE)
        if isinstance(optimiser, FlatAdamW):
            assert bool(optimiser.update(losses, weight.grad.norm(), longest)) == (number != 3)
        elif number != 3:
            if longest is not None:
                nn.utils.clip_grad_norm_([weight], longest)
            optimiser.step()
        seen.append(weight.detach().clone())
    return seen


def new(kind: type[torch.optim.AdamW]) -> torch.optim.AdamW:
    draw = torch.Generator().manual_seed(99)
    weight = nn.Parameter(torch.randn(5056, generator=draw).to(DEVICE))
    rate = torch.tensor(1e-2, device=DEVICE)
    optimiser = kind([weight], lr=rate, weight_decay=1e-2, fused=True, capturable=ON_GPU)
    if isinstance(optimiser, FlatAdamW):
        optimiser.quick = True
    return optimiser


@pytest.mark.parametrize("longest", [None, 1.0, 1e6])
def test_it_is_adamw(longest: float | None) -> None:
    ours = steps(new(FlatAdamW), range(6), longest)
    theirs = steps(new(torch.optim.AdamW), range(6), longest)
    for mine, expected in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(ours[2], ours[3])


def test_it_goes_on_from_what_torch_has_kept() -> None:
    whole = steps(new(torch.optim.AdamW), range(6), 1.0)[-1]
    first, second = new(torch.optim.AdamW), new(FlatAdamW)
    half = steps(first, range(4), 1.0)[-1]
    second.load_state_dict(first.state_dict())
    (weight,) = second.param_groups[0]["params"]
    with torch.no_grad():
        weight.copy_(half)
    (ours,) = steps(second, range(4, 6), 1.0)[-1:]
    assert torch.allclose(ours, whole, rtol=1e-6, atol=1e-6)
    assert float(second.state[weight]["step"]) == 5


@pytest.mark.parametrize("longest", [None, 1.0])
def test_a_gradient_that_is_not_finite_is_not_applied(longest: float | None) -> None:
    optimiser = new(FlatAdamW)
    (weight,) = optimiser.param_groups[0]["params"]
    before = weight.detach().clone()
    weight.grad = torch.full_like(weight, torch.inf)
    losses = torch.ones(4, device=DEVICE)
    assert isinstance(optimiser, FlatAdamW)
    assert not bool(optimiser.update(losses, weight.grad.norm(), longest))
    assert torch.equal(weight, before)
    assert float(optimiser.state[weight]["step"]) == 0
