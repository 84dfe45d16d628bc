"""An attention of torch between the kernels of a fused block, there and back.

Kernels project to q, k and v and take over from what the attention mixed. In between it is the
module that defines it, with a history of its own, which the way back asks for gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from ono.nn.attention import Attention
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


class Attended(NamedTuple):
    """What an attention has mixed, with its history, and q, k, v and own parameters it is of."""

    mixed: Tensor
    sources: list[Tensor]
    own: list[Tensor]


def attended(attention: Attention, sources: Sequence[Points], setting: Setting) -> Attended:
    """Return what an attention mixes of q, k and v.

    Wherever it is called from, also on the way back, products are rounded as `setting` says.
    """
    device, half = sources[0].device.type, setting.precision == "bf16"
    # A history of its own begins with tensors of its own: parameters belong to the outer one, and
    # to the stream on which that began.
    sources = [x.detach().requires_grad_() for x in sources]
    own = {
        name: p.detach().requires_grad_(p.requires_grad)
        for name, p in own_parameters(attention).items()
    }
    measure = Measure(setting.weights, padded=setting.padded)
    # Casts that autocast remembers would be part of a history that is soon forgotten.
    rounded = torch.autocast(device, torch.bfloat16, enabled=half, cache_enabled=False)
    with torch.enable_grad(), rounded:
        replaced = {f"attention.{name}": p for name, p in own.items()}
        mixed = functional_call(_Mixing(attention), replaced, (*sources, measure))
    mixed = mixed.to(sources[0].dtype).contiguous()
    return Attended(mixed, sources, list(own.values()))


def attention_backward(told: Attended, d_mixed: Points) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the gradients of q, k and v, and of the attention's own parameters."""
    learned = [p for p in told.own if p.requires_grad]
    found = torch.autograd.grad(told.mixed, (*told.sources, *learned), d_mixed)
    of_own = dict(zip(map(id, learned), found[3:], strict=True))
    return [x.contiguous() for x in found[:3]], [of_own.get(id(p)) for p in told.own]


class _Mixing(nn.Module):
    """An attention without its projections, as a module, whose parameters can be replaced."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, q: Points, k: Points, v: Points, measure: Measure) -> Points:
        """Return what the points read."""
        return self.attention.mix(q, self.attention.summary(q, k, v, measure))
