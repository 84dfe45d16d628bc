"""Softmax attention between many points and few landmarks, as a few GPU kernels there and back."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ono.nn.fused_launch import MULTIPROCESSORS, ambient_precision, has_landmark_kernels

_TILE = 64
MOST_LANDMARKS = 64
"""Landmarks that fit a tile."""
_SHARES = (16, 32, 64)
_SIZE = {"tile": _TILE, "num_warps": 4, "num_stages": 1}
# Programs that keep a GPU busy with so short ones.
_PROGRAMS = 8 * MULTIPROCESSORS

Queries = Float[Tensor, "batch heads queries share"]
Keys = Float[Tensor, "batch heads keys share"]


def can_attend(q: Queries, k: Keys) -> bool:
    """Say whether the kernels take such queries and keys.

    >>> can_attend(torch.zeros(1, 2, 99, 16), torch.zeros(1, 2, 64, 16))
    False
    """
    few = min(q.shape[-2], k.shape[-2]) <= MOST_LANDMARKS and q.shape[-1] in _SHARES
    short = q.dtype != torch.float64 and not torch.compiler.is_compiling()
    return few and short and q.is_cuda and has_landmark_kernels(q.device)


def fused_landmark_attention(q: Queries, k: Keys, v: Keys, bias: Tensor | None) -> Queries:
    """Return what `landmark_attention` returns, of the type of v."""
    function = _Read if k.shape[-2] <= MOST_LANDMARKS else _Write
    bias = None if bias is None else bias.contiguous()
    mixed: Tensor = function.apply(*map(_dense, (q, k, v)), bias)  # type: ignore[no-untyped-call]
    return mixed


class _Read(torch.autograd.Function):
    """Many points look at few landmarks."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        from ono.nn.landmark_attention_triton import read

        batch, heads, points, _ = q.shape
        ctx.precision = ambient_precision(q.device)
        ctx.save_for_backward(q, k, v, bias)
        out = _points_like(q, v.dtype)
        with torch.cuda.device_of(q):
            read[-(-points // _TILE), batch * heads](
                q, k, v, bias, out, *_strides(q, k, v, out), heads, points, k.shape[-2], _scale(q),
                **_form(k, bias, ctx.precision),
            )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from ono.nn.landmark_attention_triton import read_backward

        q, k, v, bias = ctx.saved_tensors
        d_out = _dense(gradients[0])
        batch, heads, points, share = q.shape
        parts, steps = _cut(q, points)
        d_q, form = _points_like(q, q.dtype), _form(k, bias, ctx.precision)
        d_marks = _float32(q, parts, 2, batch, heads, form["wide"], share)
        with torch.cuda.device_of(q):
            read_backward[parts, batch * heads](
                q, k, v, bias, d_out, d_q, d_marks, *_strides(q, k, v, d_out, d_q), heads, points,
                k.shape[-2], steps, _scale(q), **form,
            )  # fmt: skip
        d_k, d_v = d_marks.sum(0)[..., : k.shape[-2], :]
        return d_q, d_k.to(k.dtype), d_v.to(v.dtype), None


class _Write(torch.autograd.Function):
    """Few landmarks look at many points."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        from ono.nn.landmark_attention_triton import merged, write

        batch, heads, marks, share = q.shape
        points = k.shape[-2]
        parts, steps = _cut(q, points)
        ctx.precision = ambient_precision(q.device)
        form = _form(q, bias, ctx.precision)
        every, wide = batch * heads, form["wide"]
        peaks, totals = (_float32(q, parts, every, wide) for _ in range(2))
        sums = _float32(q, parts, every, wide, share)
        out = torch.empty(q.shape, device=q.device, dtype=v.dtype)
        level = _float32(q, every, wide)
        with torch.cuda.device_of(q):
            write[parts, every](
                q, k, v, bias, peaks, totals, sums, *_strides(q, k, v), heads, points, marks, steps,
                _scale(q), **form,
            )  # fmt: skip
            merged[every,](peaks, totals, sums, out, level, parts, marks, wide=wide, share=share)
        ctx.save_for_backward(q, k, v, bias, out, level)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from ono.nn.landmark_attention_triton import write_backward

        q, k, v, bias, out, level = ctx.saved_tensors
        d_out = _dense(gradients[0])
        batch, heads, marks, share = q.shape
        points = k.shape[-2]
        parts, steps = _cut(q, points)
        form = _form(q, bias, ctx.precision)
        d_k, d_v = _points_like(k, k.dtype), _points_like(v, v.dtype)
        d_q = _float32(q, parts, batch, heads, form["wide"], share)
        with torch.cuda.device_of(q):
            write_backward[parts, batch * heads](
                q, k, v, bias, out, level, d_out, d_k, d_v, d_q, *_strides(q, k, v, d_out, d_k),
                heads, points, marks, steps, _scale(q), **form,
            )  # fmt: skip
        return d_q.sum(0)[..., :marks, :].to(q.dtype), d_k, d_v, None


def _cut(q: Tensor, points: int) -> tuple[int, int]:
    """Return in how many parts points are summed, and how many tiles each has."""
    tiles = -(-points // _TILE)
    steps = max(tiles * q.shape[0] * q.shape[1] // _PROGRAMS, 1)
    return -(-tiles // steps), steps


def _form(marks: Tensor, bias: Tensor | None, precision: str) -> dict[str, Any]:
    """Return how a kernel is compiled for so many landmarks."""
    count, share = marks.shape[-2:]
    wide = max(16, 1 << (count - 1).bit_length())
    told = {"biased": bias is not None, "wide": wide, "share": share, "precision": precision}
    return _SIZE | told


def _points_like(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return room for [batch heads points share], of which all channels of a point are together."""
    batch, heads, points, share = x.shape
    room = torch.empty(batch, points, heads, share, device=x.device, dtype=dtype)
    return room.transpose(1, 2)


def _float32(like: Tensor, *shape: int) -> Tensor:
    """Return room for sums."""
    return like.new_empty(shape, dtype=torch.float32)


def _dense(x: Tensor) -> Tensor:
    """Return an array of which the channels of a head are together."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(*arrays: Tensor) -> list[int]:
    return [size for array in arrays for size in array.stride()[:3]]


def _scale(q: Tensor) -> float:
    return 1 / math.sqrt(q.shape[-1])
