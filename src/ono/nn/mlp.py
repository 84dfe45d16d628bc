"""Point-wise networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ono.nn.measure import at_least_float32


class FFN(nn.Sequential):
    """Two layers with a GELU between them."""

    def __init__(self, width: int, hidden: int, out: int | None = None) -> None:
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, out or width))

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Return weight and bias of both layers."""
        return [(part.weight, part.bias) for part in self if isinstance(part, nn.Linear)]


class EndLinear(nn.Linear):
    """A linear layer at an end of an operator, which autocast leaves in float32.

    bfloat16 knows a place, or a value of the solution, to one part in 256 only.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     print(EndLinear(2, 3)(torch.rand(5, 2)).dtype, nn.Linear(2, 3)(torch.rand(5, 2)).dtype)
    torch.float32 torch.bfloat16
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return W x + b."""
        x = at_least_float32(input)
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x)


class Head(nn.Sequential):
    """Two layers with a GELU between them, behind which nothing is rounded."""

    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__(nn.Linear(width, hidden), nn.GELU(), EndLinear(hidden, out))


class Unrounded(nn.Sequential):
    """Modules at an end of an operator, all of which autocast leaves in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the modules one after the other."""
        x = at_least_float32(x)
        with torch.autocast(x.device.type, enabled=False):
            for part in self:
                x = part(x)
        return x


class Lift(FFN, Unrounded):
    """The point-wise network that lifts inputs to channels."""


def initialise(module: nn.Module) -> None:
    """Draw the weights of every linear layer from a truncated normal of width 0.02."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
