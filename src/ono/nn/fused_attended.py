"""An attention of torch between the kernels of a fused block.

Kernels project to q, k and v and take over from what the attention mixed.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from ono.nn.attention import Attention
from ono.nn.fused_interlude import Interlude, interlude
from ono.nn.fused_launch import Setting
from ono.nn.measure import Measure

Points = Float[Tensor, "batch points width"]


def own_parameters(attention: Attention) -> dict[str, Tensor]:
    """Return the parameters of an attention beside its projections, which kernels multiply with.

    >>> from ono.nn.attention import EfficientAttention, GalerkinAttention
    >>> len(own_parameters(EfficientAttention(8, 2))), len(own_parameters(GalerkinAttention(8, 2)))
    (0, 4)
    """
    projections = {id(p) for part in (attention.qkv, attention.out) for p in part.parameters()}
    return {name: p for name, p in attention.named_parameters() if id(p) not in projections}


def attended(attention: Attention, sources: Sequence[Points], setting: Setting) -> Interlude:
    """Return what an attention mixes of q, k and v."""
    own = {f"attention.{name}": p for name, p in own_parameters(attention).items()}
    half = setting.precision == "bf16"
    return interlude(_Mixing(attention), own, sources, setting.measure, half=half)


class _Mixing(nn.Module):
    """An attention without its projections, as a module, whose parameters can be replaced."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, q: Points, k: Points, v: Points, measure: Measure) -> Points:
        """Return what the points read."""
        return self.attention.mix(q, self.attention.summary(q, k, v, measure))
