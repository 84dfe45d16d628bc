"""The parameters of a module in one stretch of memory.

An optimiser that walks over hundreds of small tensors spends its time on beginning anew. In one
stretch clipping, the update and the average of the weights are one operation each.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Every parameter starts where vector instructions and tensor cores want it.
_ALIGNED = 64


class FlatParameters:
    """One parameter that holds others, which become views of it.

    >>> layer = nn.Linear(3, 2)
    >>> flat = FlatParameters(layer.parameters())
    >>> layer(torch.ones(1, 3)).sum().backward()
    >>> flat.gather().sum()
    tensor(8.)
    >>> with torch.no_grad():
    ...     _ = flat.whole.zero_()
    >>> layer.bias.tolist()
    [0.0, 0.0]
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parts = list(parameters)
        if len({part.dtype for part in self.parts}) > 1:
            raise TypeError("parameters that are trained together must have the same type")
        sizes = [-(-part.numel() // _ALIGNED) * _ALIGNED for part in self.parts]
        self.whole = nn.Parameter(self.parts[0].new_zeros(sum(sizes)))
        self.whole.grad = torch.zeros_like(self.whole)
        views = self._cut(self.whole.detach(), sizes)
        self.gradients = self._cut(self.whole.grad, sizes)
        with torch.no_grad():
            for part, view in zip(self.parts, views, strict=True):
                view.copy_(part)
                part.data = view

    def _cut(self, whole: Tensor, sizes: list[int]) -> list[Tensor]:
        pieces = zip(self.parts, whole.split(sizes), strict=True)
        return [piece[: part.numel()].view(part.shape) for part, piece in pieces]

    def forget_gradients(self) -> None:
        """Let the next backward pass start from nothing."""
        for part in self.parts:
            part.grad = None

    @torch.no_grad()
    def gather(self) -> Tensor:
        """Return the gradient of the one parameter, gathered from all; none counts as zero."""
        given = [part.grad for part in self.parts if part.grad is not None]
        views = [
            v for v, part in zip(self.gradients, self.parts, strict=True) if part.grad is not None
        ]
        if len(given) < len(self.parts):
            torch._foreach_zero_(self.gradients)
        torch._foreach_copy_(views, given)
        assert self.whole.grad is not None
        return self.whole.grad
