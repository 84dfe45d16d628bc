"""A module of torch between two kernels of a fused block, there and back.

It stays the definition of what it does, and has a history of its own, which the way back asks for
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call


class Interlude(NamedTuple):
    """What a module made, with its history, and the tensors and parameters that it made it of."""

    made: Tensor
    sources: list[Tensor]
    own: list[Tensor]


def interlude(
    module: nn.Module,
    parameters: Mapping[str, Tensor],
    sources: Sequence[Tensor],
    *others: Any,
    half: bool,
) -> Interlude:
    """Call a module on some tensors, and on what else it takes; gradients may be asked for.

    `parameters` are those that get one. Products are rounded to bfloat16 if `half`, wherever this
    is called from, also on the way back.

    >>> layer = nn.Linear(3, 1)
    >>> made = interlude(layer, dict(layer.named_parameters()), [torch.ones(2, 3)], half=False)
    >>> (of_source,), of_own = interlude_backward(made, torch.ones(2, 1))
    >>> of_source.shape, [gradient.shape for gradient in of_own]
    (torch.Size([2, 3]), [torch.Size([1, 3]), torch.Size([1])])
    """
    device = sources[0].device.type
    # A history of its own begins with tensors of its own: parameters belong to the outer one, and
    # to the stream on which that began.
    sources = [x.detach().requires_grad_() for x in sources]
    own = {name: p.detach().requires_grad_(p.requires_grad) for name, p in parameters.items()}
    # Casts that autocast remembers would be part of a history that is soon forgotten.
    rounded = torch.autocast(device, torch.bfloat16, enabled=half, cache_enabled=False)
    with torch.enable_grad(), rounded:
        made = functional_call(module, own, (*sources, *others))
        made = made.to(sources[0].dtype).contiguous()
    return Interlude(made, sources, list(own.values()))


def interlude_backward(told: Interlude, d_made: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the gradients of the tensors, and those of the parameters that are learned."""
    learned = [p for p in told.own if p.requires_grad]
    found = torch.autograd.grad(told.made, (*told.sources, *learned), d_made)
    of_sources, of_learned = found[: len(told.sources)], found[len(told.sources) :]
    of_own = dict(zip(map(id, learned), of_learned, strict=True))
    return [x.contiguous() for x in of_sources], [of_own.get(id(p)) for p in told.own]
