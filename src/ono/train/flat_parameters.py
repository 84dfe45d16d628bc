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
        pieces = self.whole.detach().split(sizes)
        zeros = self.whole.new_zeros(_ALIGNED)
        self.gaps = [
            zeros[: size - part.numel()] for part, size in zip(self.parts, sizes, strict=True)
        ]
        with torch.no_grad():
            for part, piece in zip(self.parts, pieces, strict=True):
                view = piece[: part.numel()].view(part.shape)
                view.copy_(part)
                part.data = view

    def forget_gradients(self) -> None:
        """Let the next backward pass start from nothing."""
        for part in self.parts:
            part.grad = None

    @torch.no_grad()
    def gather(self) -> Tensor:
        """Return the gradient of the one parameter, gathered from all; none counts as zero."""
        assert self.whole.grad is not None
        pieces = []
        for part, gap in zip(self.parts, self.gaps, strict=True):
            given = gap.new_zeros(part.numel()) if part.grad is None else part.grad.flatten()
            pieces += [given, gap] if len(gap) else [given]
        return torch.cat(pieces, out=self.whole.grad)
