"""The pseudo-inverse of Nyström attention as one GPU kernel there and one back."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ono.nn.fused_launch import ambient_precision, missing, wide

# Warps of a program by the rows of its tile. More would not spare registers: the factor on the
# left, held by every four of them, takes most.
_WARPS = {16: 1, 32: 2, 64: 4}
_TENSOR_MEMORY = (10, 11)
"""Compute capabilities with a memory for sums of products, which holds too few of them."""

Matrices = Float[Tensor, "batch landmarks landmarks"]


def can_invert(matrices: Matrices) -> bool:
    """Say whether the kernels take such matrices.

    >>> can_invert(torch.eye(3)[None])
    False
    """
    fits = matrices.dtype == torch.float32 and matrices.shape[-1] <= max(_WARPS)
    return fits and matrices.is_cuda and _has_kernels(matrices.device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_kernels(device: torch.device) -> bool:
    major, _ = torch.cuda.get_device_capability(device)
    return missing(device) is None and major not in _TENSOR_MEMORY


def fused_pseudo_inverse(matrices: Matrices, iterations: int) -> Matrices:
    """Return what `pseudo_inverse` returns."""
    inverse: Tensor = _Inverted.apply(matrices, iterations)  # type: ignore[no-untyped-call]
    return inverse


class _Inverted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrices: Tensor, iterations: int) -> Tensor:
        matrices = matrices.contiguous()
        inverse: Tensor
        inverse, kept = inverted(matrices, iterations, any(ctx.needs_input_grad))
        ctx.save_for_backward(matrices, kept)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return inverted_backward(gradients[0].contiguous(), *ctx.saved_tensors), None


# Operators of their own, which torch.compile takes as they are.
@torch.library.custom_op(
    "ono::pseudo_inverse",
    mutates_args=(),
    schema="(Tensor matrices, int iterations, bool keep) -> (Tensor, Tensor)",
)
def inverted(matrices: Tensor, iterations: int, keep: bool) -> tuple[Tensor, Tensor]:
    """Return the inverses and, if wanted, what each iteration began with."""
    from ono.nn.pseudo_inverse_triton import inverted as kernel

    inverse, kept = _room(matrices, iterations, keep)
    with torch.cuda.device_of(matrices):
        kernel[len(matrices),](
            matrices, inverse, kept if keep else None, iterations, **_form(matrices)
        )
    return inverse, kept


@inverted.register_fake
def _room(matrices: Tensor, iterations: int, keep: bool) -> tuple[Tensor, Tensor]:
    kept = matrices.new_empty(iterations if keep else 0, *matrices.shape)
    return torch.empty_like(matrices), kept


@torch.library.custom_op(
    "ono::pseudo_inverse_backward",
    mutates_args=(),
    schema="(Tensor d_inverse, Tensor matrices, Tensor kept) -> Tensor",
)
def inverted_backward(d_inverse: Tensor, matrices: Tensor, kept: Tensor) -> Tensor:
    """Return the gradient of the matrices."""
    from ono.nn.pseudo_inverse_triton import inverted_backward as kernel

    d_matrices = torch.empty_like(matrices)
    with torch.cuda.device_of(matrices):
        kernel[len(matrices),](d_inverse, matrices, kept, d_matrices, len(kept), **_form(matrices))
    return d_matrices


@inverted_backward.register_fake
def _like(d_inverse: Tensor, matrices: Tensor, kept: Tensor) -> Tensor:
    return torch.empty_like(matrices)


def _form(matrices: Tensor) -> dict[str, Any]:
    """Return the tile that holds a matrix, with how many warps, and how products are computed."""
    size = matrices.shape[-1]
    tile = next(tile for tile in _WARPS if size <= tile)
    precision = wide(ambient_precision(matrices.device))
    launch = {"num_warps": _WARPS[tile], "num_stages": 1}
    return {"size": size, "tile": tile, "precision": precision, **launch}
