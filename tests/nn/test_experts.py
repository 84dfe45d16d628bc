"""Geometric gating: shares sum to one and depend on the place only."""

from __future__ import annotations

import torch

from ono.nn.experts import Experts, GeometricGate


def test_shares_are_positive_and_sum_to_one() -> None:
    torch.manual_seed(0)
    shares = GeometricGate(3, hidden=16, experts=4)(100 * torch.randn(2, 50, 3))
    assert bool((shares >= 0).all())
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 50))


def test_experts_are_added_in_their_shares() -> None:
    torch.manual_seed(0)
    mixture = Experts(6, 24, experts=3)
    x, shares = torch.randn(2, 5, 6), torch.rand(2, 5, 3).softmax(-1)
    parts = torch.stack([expert(x) for expert in mixture.experts], -1)
    torch.testing.assert_close(mixture(x, shares), (parts * shares[..., None, :]).sum(-1))
    only_second = torch.tensor([0.0, 1.0, 0.0]).expand(2, 5, 3)
    torch.testing.assert_close(mixture(x, only_second), mixture.experts[1](x))
