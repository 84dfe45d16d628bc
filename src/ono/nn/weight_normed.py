"""Linear layers whose weights are a direction and a length."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from ono.nn.mlp import EndLinear


def weight_normed(inputs: int, outputs: int, *, at_end: bool = False) -> nn.Linear:
    """Return a linear layer with W = g v / |v| for each output, v and g learned apart.

    >>> sum(p.numel() for p in weight_normed(4, 64).parameters())  # v, g and the bias
    384
    """
    layer = weight_norm((EndLinear if at_end else nn.Linear)(inputs, outputs))
    assert isinstance(layer, nn.Linear)
    return layer


class WeightNormedFFN(nn.Sequential):
    """Two weight-normed layers with a ReLU between them."""

    def __init__(self, width: int, factor: int) -> None:
        hidden = factor * width
        super().__init__(weight_normed(width, hidden), nn.ReLU(), weight_normed(hidden, width))
