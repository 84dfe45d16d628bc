from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ono.nn.landmark_attention import ThroughMap, landmark_attention


@pytest.mark.parametrize(("queries", "keys"), [(5, 23), (23, 5)])
@pytest.mark.parametrize("hidden", [0, 2])
def test_the_map_is_torchs_attention(queries: int, keys: int, hidden: int) -> None:
    draw = torch.Generator().manual_seed(0)
    sizes = (queries, keys, keys)
    inputs = [torch.randn(2, 3, n, 4, generator=draw, dtype=torch.float64) for n in sizes]
    inputs = [x.requires_grad_() for x in inputs]
    bias = torch.randn(2, 1, 1, keys, generator=draw, dtype=torch.float64)
    bias[..., :hidden] = -torch.inf
    ours = ThroughMap.apply(*inputs, bias)  # type: ignore[no-untyped-call]
    q, k, v = inputs
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    given = torch.randn(ours.shape, generator=draw, dtype=torch.float64)
    assert torch.allclose(ours, theirs)
    for mine, expected in zip(
        torch.autograd.grad(ours, inputs, given),
        torch.autograd.grad(theirs, inputs, given),
        strict=True,
    ):
        assert torch.allclose(mine, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("landmarks", [64, 80])
def test_a_gpu_gives_the_same_and_keeps_no_map(landmarks: int) -> None:
    inputs = [torch.randn(4, 8, n, 16, device="cuda") for n in (landmarks, 8000, 8000)]
    inputs = [x.requires_grad_() for x in inputs]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    q, k, v = inputs
    ours = landmark_attention(q, k, v, None)
    kept = torch.cuda.memory_allocated() - before
    theirs = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert float((ours - theirs).detach().norm() / theirs.detach().norm()) < 1e-3
    assert kept < 4 * 8 * 64 * 8000
