"""A mixture of experts whose gate sees only where a point is (GNOT, Hao et al., ICML 2023)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.nn.mlp import FFN, EndLinear


class GeometricGate(nn.Module):
    """Divide the domain softly among experts.

    >>> shares = GeometricGate(2, hidden=16, experts=3)(torch.rand(4, 10, 2))
    >>> shares.shape, bool(torch.allclose(shares.sum(-1), torch.ones(4, 10)))
    (torch.Size([4, 10, 3]), True)
    """

    def __init__(self, dim: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.net = nn.Sequential(EndLinear(dim, hidden), nn.GELU(), FFN(hidden, hidden, experts))

    def forward(
        self, coords: Float[Tensor, "batch points dim"]
    ) -> Float[Tensor, "batch points experts"]:
        """Return the share of each expert at each point; they sum to one."""
        shares: Tensor = self.net(coords).softmax(-1)
        return shares


class Experts(nn.Module):
    """Evaluate every expert and add them in the shares of the gate."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(FFN(width, hidden) for _ in range(experts))

    def forward(
        self,
        x: Float[Tensor, "batch points width"],
        shares: Float[Tensor, "batch points experts"],
    ) -> Float[Tensor, "batch points width"]:
        """Return Σ_i share_i(point) · expert_i(x)."""
        total = torch.zeros_like(x)
        for share, expert in zip(shares.split(1, -1), self.experts, strict=True):
            total = total + share * expert(x)
        return total
