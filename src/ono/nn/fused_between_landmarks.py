"""What landmarks tell, with all that lies between them, as one GPU kernel there and one back."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ono.nn.fused_launch import ambient_precision, has_landmark_kernels, wide

# Warps of a program by the rows of its tile. More would not spare registers: the factor on the
# left, held by every four of them, takes most.
_WARPS = {16: 1, 32: 2, 64: 4}
_SHARES = (16, 32, 64)

Landmarks: TypeAlias = Float[Tensor, "batch heads landmarks share"]


def can_tell(q: Landmarks) -> bool:
    """Say whether the kernels take such landmarks.

    >>> can_tell(torch.zeros(1, 2, 64, 16))
    False
    """
    fits = q.shape[-2] <= max(_WARPS) and q.shape[-1] in _SHARES and q.dtype != torch.float64
    return fits and q.is_cuda and has_landmark_kernels(q.device)


def fused_between_landmarks(
    q: Landmarks,
    k: Landmarks,
    seen: Landmarks,
    used: Bool[Tensor, "batch landmarks"] | None,
    iterations: int,
) -> Landmarks:
    """Return what `between_landmarks` returns."""
    counts = None if used is None else used.sum(-1, dtype=torch.int32)
    answer: Tensor = _Told.apply(q, k, seen, counts, iterations)  # type: ignore[no-untyped-call]
    return answer


class _Told(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, seen: Tensor, counts: Tensor | None, iterations: int
    ) -> Tensor:
        q, k, seen = (x.contiguous() for x in (q, k, seen))
        answer: Tensor
        ctx.precision = wide(ambient_precision(q.device))
        keep = any(ctx.needs_input_grad)
        answer, shares, kept = told(q, k, seen, counts, iterations, keep, ctx.precision)
        ctx.save_for_backward(q, k, seen, counts, shares, kept)
        return answer

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_answer = gradients[0].contiguous()
        return *told_backward(d_answer, *ctx.saved_tensors, ctx.precision), None, None


# Operators of their own, which torch.compile takes as they are.
@torch.library.custom_op(
    "ono::told_by_landmarks",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor seen, Tensor? counts, int iterations, bool keep,"
    " str precision)"
    " -> (Tensor, Tensor, Tensor)",
)
def told(
    q: Tensor,
    k: Tensor,
    seen: Tensor,
    counts: Tensor | None,
    iterations: int,
    keep: bool,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the answers and, if wanted, shares, and what each iteration began and ended with."""
    from ono.nn.between_landmarks_triton import told as kernel

    answer, shares, kept = _room(q, k, seen, counts, iterations, keep, precision)
    with torch.cuda.device_of(q):
        kernel[_programs(q),](
            q, k, seen, counts, answer, shares if keep else None, kept if keep else None,
            q.shape[1], iterations, 1 / math.sqrt(q.shape[-1]), **_form(q, precision),
        )  # fmt: skip
    return answer, shares, kept


@told.register_fake
def _room(
    q: Tensor,
    k: Tensor,
    seen: Tensor,
    counts: Tensor | None,
    iterations: int,
    keep: bool,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    size = q.shape[-2]
    matrices = (_programs(q) if keep else 0, size, size)
    shares = q.new_empty(matrices, dtype=torch.float32)
    return torch.empty_like(seen), shares, shares.new_empty(iterations + 1, *matrices)


@torch.library.custom_op(
    "ono::told_by_landmarks_backward",
    mutates_args=(),
    schema="(Tensor d_answer, Tensor q, Tensor k, Tensor seen, Tensor? counts, Tensor shares,"
    " Tensor kept, str precision) -> (Tensor, Tensor, Tensor)",
)
def told_backward(
    d_answer: Tensor,
    q: Tensor,
    k: Tensor,
    seen: Tensor,
    counts: Tensor | None,
    shares: Tensor,
    kept: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and what was seen."""
    from ono.nn.between_landmarks_triton import told_backward as kernel

    d_q, d_k, d_seen = (torch.empty_like(x) for x in (q, k, seen))
    with torch.cuda.device_of(q):
        kernel[_programs(q),](
            d_answer, q, k, seen, counts, shares, kept, d_q, d_k, d_seen,
            q.shape[1], len(kept) - 1, 1 / math.sqrt(q.shape[-1]), **_form(q, precision),
        )  # fmt: skip
    return d_q, d_k, d_seen


@told_backward.register_fake
def _like(
    d_answer: Tensor,
    q: Tensor,
    k: Tensor,
    seen: Tensor,
    counts: Tensor | None,
    shares: Tensor,
    kept: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(seen)


def _programs(q: Tensor) -> int:
    return q.shape[0] * q.shape[1]


def _form(q: Tensor, precision: str) -> dict[str, Any]:
    """Return the tile that holds a matrix, with how many warps, and how products are computed."""
    size, share = q.shape[-2:]
    tile = next(tile for tile in _WARPS if size <= tile)
    launch = {"num_warps": _WARPS[tile], "num_stages": 1}
    return {"size": size, "tile": tile, "share": share, "precision": precision, **launch}
