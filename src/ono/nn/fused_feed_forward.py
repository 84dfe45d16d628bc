"""The way back through the FFN of a block, in both flows."""

from __future__ import annotations

import torch
from torch import Tensor

from ono.nn.fused_form import Form
from ono.nn.fused_launch import CHAIN, chain


def feed_forward_back(
    d_after: Tensor,
    before: Tensor,
    parameters: tuple[Tensor, ...],
    left: Tensor,
    right: Tensor,
    precision: str,
) -> Tensor:
    """Return the gradient before the FFN of a block."""
    from ono.nn.feed_forward_triton import feed_forward_backward

    norm, shift, w_1, b_1, w_2 = parameters
    rows, width = left.shape[1:]
    programs = -(-rows // CHAIN["tile"])
    form = Form.of(programs, rows, width, precision, before.device)
    d_before = torch.empty_like(before)
    feed_forward_backward[programs,](
        form.tiles(d_after), form.tiles(before), norm, shift, form.weight(w_1), b_1,
        form.weight(w_2), w_2.stride(0), form.tiles(d_before), form.tiles(left), form.tiles(right),
        rows, **chain(programs, precision), **form.options, width=width, precision=precision,
    )  # fmt: skip
    return d_before
