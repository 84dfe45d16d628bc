"""Both flows of ONO through fused GPU kernels, where its configuration allows.

They are written for the configuration that is trained most: pre-norm blocks with efficient
attention, as many eigenfunctions as channels, FFNs as wide as the flows. Everything else, and
evaluation, takes the plain path. Both compute the same function.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.nn.blocks import NNBlock, OrthogonalBlock
from ono.nn.fused_launch import WIDTHS, ambient_precision, operands
from ono.nn.fused_lower import lower_block, lower_weights
from ono.nn.fused_upper import upper_block, upper_weights
from ono.nn.measure import Measure
from ono.nn.mlp import FFN
from ono.nn.orthogonal_attention import OrthogonalAttention, kernels
from ono.nn.whitening import Whitener, covariances


def unfusable(config: ONOConfig) -> str | None:
    """Return the option that the fused kernels cannot do, or None.

    >>> unfusable(ONOConfig()), unfusable(ONOConfig(block="post"))
    (None, 'model.block=post')
    """
    eigen, lower, width = config.eigen, config.lower, config.width
    share = eigen.functions
    demands = {
        f"model.width={width}": width in WIDTHS,
        f"model.block={config.block}": config.block == "pre",
        f"model.query={config.query}": config.query != "cross",
        f"model.ffn_ratio={config.ffn_ratio}": config.ffn_ratio == 1,
        f"model.lower.attention={lower.attention}": lower.attention == "efficient",
        f"model.lower.width={lower.width}": lower.width in (None, width),
        f"model.lower.layers={lower.layers}": lower.layers in (None, config.layers),
        f"model.lower.heads={lower.heads}": lower.heads * share == width,
        f"model.eigen.heads={eigen.heads}": eigen.heads * share == width,
        f"model.eigen.functions={share}": share in (16, 32, 64),
        f"model.eigen.norm={eigen.norm}": eigen.norm == "ortho",
        f"model.eigen.measure={eigen.measure}": eigen.measure != "sum",
        f"model.eigen.value_projection={eigen.value_projection}": eigen.value_projection,
        f"model.eigen.bias={eigen.bias}": eigen.bias,
    }
    return next((option for option, met in demands.items() if not met), None)


def fuse_blocks(module: nn.Module, wanted: bool = True) -> int:
    """Let every ONO inside a module that can use the fused kernels; return how many there are."""
    parts = [p for p in module.modules() if isinstance(p, ONO) and unfusable(p.config) is None]
    for part in parts:
        part.flows = flows if wanted else None
    return len(parts)


def flows(
    model: ONO,
    g: Float[Tensor, "batch points width"],
    h: Float[Tensor, "batch *time points width"],
    measure: Measure,
) -> Float[Tensor, "batch *time points out"]:
    """Return the output of a model from g⁰ and h¹ (Eqs. 3-9)."""
    lowers = cast("list[NNBlock]", list(model.lower))
    uppers = cast("list[OrthogonalBlock]", list(model.upper))
    below, above = _multiplied(lowers, uppers, ambient_precision(g.device))
    features, grams = _lower_flow(lowers, uppers, below, g, measure)
    mixing = _mixing([upper.attention for upper in uppers], grams)
    h = _upper_flow(uppers, above, features, mixing, h, measure)
    with torch.autocast(h.device.type, enabled=False):
        return _head(cast(nn.Sequential, model.head), h)


# torch.compile, where it is asked for, takes what lies between the flows and leaves them alone.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _lower_flow(
    lowers: list[NNBlock],
    uppers: list[OrthogonalBlock],
    multiplied: list[list[Tensor]],
    g: Tensor,
    measure: Measure,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return ĝ of every layer, and <ĝ, ĝ> in parts (Eqs. 3, 4)."""
    features, grams = [], []
    for lower, upper, weights in zip(lowers, uppers, multiplied, strict=True):
        w_q, share = upper.attention.w_q, upper.attention.options.functions
        g, g_hat, gram = lower.again(lower_block, lower, w_q, weights, g, measure, share)
        features.append(g_hat)
        grams.append(gram)
    return features, grams


def _mixing(attentions: list[OrthogonalAttention], grams: list[Tensor]) -> Tensor:
    """Return the k×k kernel of every layer (Eqs. 7-9)."""

    def moments() -> Tensor:
        moments: Tensor = _Moments.apply(*grams)  # type: ignore[no-untyped-call]
        return moments

    norms = [a.norm for a in attentions if isinstance(a.norm, Whitener)]
    with torch.autocast(grams[0].device.type, enabled=False):
        return kernels(attentions, norms[0].factor(covariances(norms, moments)))


class _Moments(torch.autograd.Function):
    """<ĝ, ĝ> of every layer and sample from their parts, [layers batch heads eigen eigen].

    All layers are summed at once, and all gradients made symmetric at once.
    """

    @staticmethod
    def forward(ctx: Any, *grams: Tensor) -> Tensor:
        ctx.parts, ctx.kind = grams[0].shape[1], grams[0].dtype
        total = torch.stack(grams).sum(2, dtype=torch.float64)
        heads: Tensor = total.unflatten(-1, (-1, total.shape[-2]))
        return heads.transpose(2, 3)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (gradient,) = gradients
        even = torch.lerp(gradient, gradient.mT, 0.5).to(ctx.kind).transpose(2, 3).flatten(3)
        return even[:, :, None].expand(-1, -1, ctx.parts, -1, -1).unbind(0)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _upper_flow(
    uppers: list[OrthogonalBlock],
    multiplied: list[list[Tensor]],
    features: list[Tensor],
    mixing: Tensor,
    h: Tensor,
    measure: Measure,
) -> Tensor:
    """Return h after the last layer (Eqs. 5, 6)."""
    for upper, weights, g_hat, kernel in zip(
        uppers, multiplied, features, mixing.unbind(0), strict=True
    ):
        h = upper.again(upper_block, upper, weights, g_hat, kernel, h, measure)
    return h


def _head(head: nn.Sequential, h: Tensor) -> Tensor:
    """Return the head of h, with the scale of its norm folded into the layer behind it.

    The gradient of a scale is a sum over all points, for which torch takes longer than for a layer.
    """
    norm, projection = head
    first = projection if isinstance(projection, nn.Linear) else cast(FFN, projection)[0]
    assert isinstance(norm, nn.LayerNorm)
    assert isinstance(first, nn.Linear)
    unit = nn.functional.layer_norm(h, norm.normalized_shape, eps=norm.eps)
    bias = first.bias + first.weight @ norm.bias
    output = nn.functional.linear(unit, first.weight * norm.weight, bias)
    return output if first is projection else cast(FFN, projection)[1:](output)


def _multiplied(
    lowers: list[NNBlock], uppers: list[OrthogonalBlock], precision: str
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Return what every block multiplies with, rounded in one go."""
    below = [
        lower_weights(lower, upper.attention.w_q)
        for lower, upper in zip(lowers, uppers, strict=True)
    ]
    above = [upper_weights(upper) for upper in uppers]
    ready = iter(operands([w for part in below + above for w in part], precision))
    return (
        [[next(ready) for _ in part] for part in below],
        [[next(ready) for _ in part] for part in above],
    )
