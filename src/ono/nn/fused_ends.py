"""Lifting of inputs and the linear head as a few GPU kernels there and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ono.nn.fused_launch import CHAIN, stored, wide
from ono.nn.fused_owed import Owed
from ono.nn.lanes import Lane, lanes
from ono.nn.mlp import Lift

MOST_OUTPUTS = 8
"""Channels of a solution up to which the head is fused."""
_MOST_INPUTS = 63
_SOME = 64
"""Hidden channels that a program holds."""
_PARTS = 66
_POINTS = {"tile": 32, "num_warps": 4}


class Lifting(NamedTuple):
    """How inputs are lifted: in which precision, and whether both networks at the same time."""

    precision: str
    streams: bool


def can_lift(inputs: Tensor) -> bool:
    """Say whether the kernels cover these inputs: not too many, and data rather than results."""
    return inputs.shape[-1] <= _MOST_INPUTS and not inputs.requires_grad


def lifted(
    networks: list[Lift], inputs: Float[Tensor, "batch points inputs"], how: Lifting
) -> tuple[Float[Tensor, "batch points width"], ...]:
    """Return what each network makes of the same inputs, through twice as many channels."""
    parameters = [p for network in networks for layer in network.layers() for p in layer]
    found: tuple[Tensor, ...] = _Lifts.apply(inputs.contiguous(), how, *parameters)  # type: ignore[no-untyped-call]
    return found


def projected(
    norm: nn.LayerNorm, layer: nn.Linear, h: Float[Tensor, "*points width"]
) -> Float[Tensor, "*points out"]:
    """Return the layer's output of the normalised h."""
    found: Tensor = _Head.apply(h, norm.weight, norm.bias, layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return found


class _Lifts(torch.autograd.Function):
    """Networks that lift the same inputs, each with a weight and a bias in two layers."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, how: Lifting, *parameters: Tensor) -> Any:
        """Lift the inputs with each network."""
        from ono.nn import ends_triton as kernels

        networks = [parameters[start : start + 4] for start in range(0, len(parameters), 4)]
        rows, width = inputs[..., 0].numel(), len(networks[0][2])
        size = CHAIN | _size(inputs, width) | {"precision": wide(how.precision)}
        found = []
        with _side_by_side(len(networks), inputs, how) as used:
            for lane, network in zip(used, networks, strict=True):
                with lane.open():
                    out = inputs.new_empty(*inputs.shape[:-1], width)
                    kernels.lift[-(-rows // CHAIN["tile"]),](inputs, *network, out, rows, **size)
                found.append(out)
        ctx.save_for_backward(inputs, *parameters)
        ctx.how = how
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of all parameters."""
        from ono.nn import ends_triton as kernels

        inputs, *parameters = ctx.saved_tensors
        networks = [parameters[start : start + 4] for start in range(0, len(parameters), 4)]
        rows, width = inputs[..., 0].numel(), len(networks[0][2])
        precision = ctx.how.precision
        size = CHAIN | _size(inputs, width) | {"precision": precision, "wide": wide(precision)}
        steps = -(-rows // (CHAIN["tile"] * _PARTS))
        parts = -(-rows // (CHAIN["tile"] * steps))
        gradients = tuple(gradient.contiguous() for gradient in gradients)
        given: list[Tensor] = []
        held = []
        with _side_by_side(len(networks), inputs, ctx.how) as used:
            for lane, network, d_out in zip(used, networks, gradients, strict=True):
                w_1, b_1, w_2, _ = network
                sizes = [w_1.numel(), 2 * width, width]
                with lane.open():
                    sums = inputs.new_empty(parts, sum(sizes))
                    left = inputs.new_empty(2, rows, width, dtype=stored(precision))
                    right = inputs.new_empty(1, rows, width, dtype=stored(precision))
                    kernels.lift_backward[parts, 2 * width // _SOME](
                        d_out, inputs, w_1, b_1, w_2, sums, left, right, rows, steps, **size
                    )
                    owed = Owed(left, right, 2, (sums,), summed=False)
                    products, _, _, (total,) = owed.settled(precision)
                held.append(owed)  # until all lanes have come together
                d_w_1, d_b_1, d_b_2 = total.split(sizes)
                d_w_2 = products.mT
                given += [d_w_1.view_as(w_1), d_b_1, d_w_2, d_b_2]
        return None, None, *given


@contextlib.contextmanager
def _side_by_side(count: int, inputs: Tensor, how: Lifting) -> Iterator[list[Lane]]:
    """Yield a lane for each network, all of which begin behind what was done so far."""
    with lanes(count, inputs.device, beside=how.streams) as used:
        for lane in used[1:]:
            lane.behind(used[0])
        yield used


class _Head(torch.autograd.Function):
    """A norm and a linear layer behind it."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, *parameters: Tensor) -> Tensor:
        """Normalise and project."""
        from ono.nn import ends_triton as kernels

        gamma, beta, weight, bias = parameters
        h = h.contiguous()
        outputs, width = weight.shape
        out = h.new_empty(*h.shape[:-1], outputs)
        rows = h[..., 0].numel()
        kernels.head[-(-rows // _POINTS["tile"]),](
            h, gamma, beta, weight, bias, out, rows, **_POINTS, outputs=outputs, width=width
        )
        ctx.save_for_backward(h, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of h and of all parameters."""
        from ono.nn import ends_triton as kernels

        h, gamma, beta, weight, _ = ctx.saved_tensors
        outputs, width = weight.shape
        rows = h[..., 0].numel()
        tiles = -(-rows // _POINTS["tile"])
        d_h, parts = torch.empty_like(h), h.new_empty(tiles, outputs * (width + 1))
        sizes = {"outputs": outputs, "width": width}
        kernels.head_backward[tiles,](
            gradients[0].contiguous(), h, gamma, weight, d_h, parts, rows, **_POINTS, **sizes
        )
        sums = parts.sum(0)
        d_gamma, d_beta, d_weight = (torch.empty_like(part) for part in (gamma, beta, weight))
        kernels.head_gradients[1,](
            sums, gamma, beta, weight, d_gamma, d_beta, d_weight, **sizes, num_warps=1
        )
        return d_h, d_gamma, d_beta, d_weight, sums[outputs * width :]


def _size(inputs: Tensor, width: int) -> dict[str, Any]:
    count = inputs.shape[-1]
    padded = max(16, 1 << count.bit_length())  # one more: for a one
    return {"inputs": count, "padded": padded, "some": _SOME, "width": width}
