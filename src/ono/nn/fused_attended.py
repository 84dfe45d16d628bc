"""An attention of torch between the kernels of a fused block, there and back.

Kernels project to q, k and v and take over from what the attention mixed. In between it is the
module that defines it, with a history of its own, which the way back asks for gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ono.nn.attention import Attention
from ono.nn.fused_launch import Setting
from ono.nn.measure import Measure

Points = Float[Tensor, "batch points width"]


def own_parameters(attention: Attention) -> list[Tensor]:
    """Return the parameters of an attention beside its projections, which kernels multiply with.

    >>> from ono.nn.attention import EfficientAttention, GalerkinAttention
    >>> len(own_parameters(EfficientAttention(8, 2))), len(own_parameters(GalerkinAttention(8, 2)))
    (0, 4)
    """
    projections = {id(p) for part in (attention.qkv, attention.out) for p in part.parameters()}
    return [p for p in attention.parameters() if id(p) not in projections]


def attended(
    attention: Attention,
    sources: Sequence[Points],
    setting: Setting,
) -> tuple[list[Tensor], Points]:
    """Return q, k and v and what the attention mixes of them, with its history.

    Wherever it is called from, also on the way back, products are rounded as `setting` says.
    """
    device, half = sources[0].device.type, setting.precision == "bf16"
    q, k, v = (x.detach().requires_grad_() for x in sources)
    # Casts that autocast remembers would be part of a history that is soon forgotten.
    rounded = torch.autocast(device, torch.bfloat16, enabled=half, cache_enabled=False)
    with torch.enable_grad(), rounded:
        mixed = attention.mix(q, attention.summary(q, k, v, Measure(setting.weights)))
    return [q, k, v], mixed.to(q.dtype).contiguous()


def attention_backward(
    attention: Attention, sources: Sequence[Points], mixed: Points, d_mixed: Points
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the gradients of q, k and v, and of the attention's own parameters."""
    own = own_parameters(attention)
    learned = [p for p in own if p.requires_grad]
    found = torch.autograd.grad(mixed, (*sources, *learned), d_mixed)
    of_own = dict(zip(map(id, learned), found[3:], strict=True))
    return [x.contiguous() for x in found[:3]], [of_own.get(id(p)) for p in own]
