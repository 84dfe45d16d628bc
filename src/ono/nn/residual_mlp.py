"""A point-wise network with residual hidden layers (GNOT, Hao et al., ICML 2023)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ono.nn.mlp import EndLinear


class ResidualMLP(nn.Module):
    """Lift, add so many residual hidden layers, project; both ends are in float32.

    >>> sum(p.numel() for p in ResidualMLP(2, 64, 64, layers=3).parameters())
    16832
    """

    def __init__(self, in_width: int, width: int, out_width: int, layers: int) -> None:
        super().__init__()
        self.lift = EndLinear(in_width, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.project = EndLinear(width, out_width)

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """Return the network's value at each point."""
        x = F.gelu(self.lift(x))
        for layer in self.hidden:
            x = x + F.gelu(layer(x))
        projected: Tensor = self.project(x)
        return projected
