"""The kernels of attention with few landmarks against torch's attention."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE, KERNELS, ON_GPU
from torch import Tensor
from torch.nn import functional as F

from ono.nn import fused_landmark_attention as fused

pytestmark = KERNELS


def of_heads(rows: int, draw: torch.Generator) -> Tensor:
    """Return rows as attentions have them: heads are views of the channels of a point."""
    points = torch.randn(2, rows, 3 * 16, generator=draw).to(DEVICE)
    heads: Tensor = points.unflatten(-1, (3, 16)).transpose(1, 2)
    return heads.requires_grad_()


@pytest.mark.parametrize(("queries", "keys"), [(150, 5), (150, 61), (64, 64), (7, 150), (61, 150)])
@pytest.mark.parametrize("hidden", [None, 2])
def test_the_kernels_are_torchs_attention(
    queries: int, keys: int, hidden: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ON_GPU:
        monkeypatch.setattr(fused, "ambient_precision", lambda device: "ieee")
    # Parts of several tiles.
    monkeypatch.setattr(fused, "_PROGRAMS", 9)
    draw = torch.Generator().manual_seed(0)
    q, k, v = inputs = [of_heads(rows, draw) for rows in (queries, keys, keys)]
    bias = None
    if hidden is not None:
        bias = torch.randn(2, 1, 1, keys, generator=draw).to(DEVICE)
        bias[..., :hidden] = -torch.inf
    ours = fused.fused_landmark_attention(q, k, v, bias)
    exact = None if bias is None else bias.double()
    theirs = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=exact)
    given = torch.randn(ours.shape, generator=draw).to(DEVICE)
    of_ours = torch.autograd.grad(ours, inputs, given)
    of_theirs = torch.autograd.grad(theirs, inputs, given.double())
    for mine, expected in zip((ours, *of_ours), (theirs, *of_theirs), strict=True):
        assert float((mine - expected).detach().norm() / expected.detach().norm()) < 1e-6
