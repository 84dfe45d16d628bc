from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ono.nn.fused_launch import available
from ono.train.adamw import FlatAdamW


def train(kind: type[torch.optim.AdamW], device: str, *, clipped: bool) -> list[Tensor]:
    """Take some steps, one of them skipped; return the weights after each."""
    draw = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(5056, generator=draw).to(device))
    rate = torch.tensor(1e-2, device=device)
    capturable = device == "cuda"
    optimiser = kind([weight], lr=rate, weight_decay=1e-2, fused=True, capturable=capturable)
    seen = []
    for step in range(6):
        weight.grad = 3 * torch.randn(5056, generator=draw).to(device)
        optimiser.found_inf = torch.tensor(float(step == 3), device=device)  # type: ignore[attr-defined]
        if clipped:
            optimiser.grad_scale = torch.tensor(2.5, device=device)  # type: ignore[attr-defined]
        if isinstance(optimiser, FlatAdamW):
            optimiser.update()
        else:
            optimiser.step()
        seen.append(weight.detach().clone())
    assert float(optimiser.state[weight]["step"]) == 5
    return seen


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not available(), reason="needs a CUDA device and Triton"),
            ],
        ),
    ],
)
def test_it_is_adamw(device: str, clipped: bool) -> None:
    ours = train(FlatAdamW, device, clipped=clipped)
    theirs = train(torch.optim.AdamW, device, clipped=clipped)
    for mine, expected in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(ours[2], ours[3])
