"""Point-wise networks."""

from __future__ import annotations

from torch import Tensor, nn


class FFN(nn.Sequential):
    """Two layers with a GELU between them."""

    def __init__(self, width: int, hidden: int, out: int | None = None) -> None:
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, out or width))

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Return weight and bias of both layers."""
        return [(part.weight, part.bias) for part in self if isinstance(part, nn.Linear)]


def initialise(module: nn.Module) -> None:
    """Draw the weights of every linear layer from a truncated normal of width 0.02."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
