"""The loss of a training step through GPU kernels of its own.

As operations of torch it is some twenty kernels, each shorter than the pause before it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ono.evaluate.metrics import relative_l2

_BLOCK = 4096
_PIECE = 1024


@torch.compiler.disable  # type: ignore[untyped-decorator]
def quick_relative_l2(
    pred: Float[Tensor, " batch *rest"],
    true: Float[Tensor, " batch *rest"],
    mask: Bool[Tensor, "batch points"] | None = None,
) -> Float[Tensor, " batch"]:
    """Return what `relative_l2` returns, with a gradient for `pred` alone; needs Triton."""
    wide = pred.dtype == true.dtype == torch.float32
    if mask is not None or not wide or pred.shape != true.shape:
        return relative_l2(pred, true, mask)
    errors: Tensor = _RelativeError.apply(pred, true)  # type: ignore[no-untyped-call]
    return errors


class _RelativeError(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pred: Tensor, true: Tensor) -> Tensor:
        from ono.train.relative_error_triton import relative_error

        pred, true = pred.contiguous(), true.contiguous()
        errors = pred.new_empty(len(pred))
        norms = pred.new_empty(2, len(pred), dtype=torch.float64)
        with torch.cuda.device_of(pred):
            relative_error[len(pred),](
                pred, true, errors, norms, pred[0].numel(), block=_BLOCK, num_warps=16
            )
        ctx.save_for_backward(pred, true, norms)
        return errors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        from ono.train.relative_error_triton import relative_error_backward

        pred, true, norms = ctx.saved_tensors
        d_pred, count = torch.empty_like(pred), pred[0].numel()
        with torch.cuda.device_of(pred):
            relative_error_backward[len(pred), -(-count // _PIECE)](
                gradients[0].contiguous(), pred, true, norms, d_pred, count, block=_PIECE
            )
        return d_pred, None
