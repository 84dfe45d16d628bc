import pytest
import torch
from torch import nn

from ono.nn.mlp import Lift, Unrounded


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_does_not_round_what_enters_an_operator(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    lift, x = Lift(3, 16, 8), torch.rand(4, 3).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        lifted, rounded = lift(x), nn.Sequential(*lift)(x)
    assert lifted.dtype == torch.float32
    assert torch.equal(lifted, lift(x.float()))
    assert not torch.equal(lifted, rounded.float())


def test_autocast_does_not_round_what_leaves_an_operator() -> None:
    torch.manual_seed(0)
    head, h = Unrounded(nn.LayerNorm(8), nn.Linear(8, 2)), torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        answer, rounded = head(h), nn.Sequential(*head)(h)
    assert torch.equal(answer, head(h))
    assert rounded.dtype == torch.bfloat16
    assert not torch.equal(answer, rounded.float())
