"""Both flows of ONO through fused GPU kernels, where its configuration allows.

They are written for the configuration that is trained most: pre-norm blocks with efficient
attention, as many eigenfunctions as channels, FFNs as wide as the flows. Everything else, and
evaluation, takes the plain path. Both compute the same function.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.nn.blocks import NNBlock, OrthogonalBlock
from ono.nn.fused_launch import WIDTHS, Setting, ambient_precision, operands
from ono.nn.fused_lower import (
    LowerKept,
    grams_of,
    lower_backward,
    lower_forward,
    lower_gradients,
    lower_parameters,
    lower_weights,
)
from ono.nn.fused_mixing import Mixed, Whitened, mixing_backward, mixing_forward
from ono.nn.fused_upper import (
    UpperKept,
    upper_backward,
    upper_forward,
    upper_gradients,
    upper_parameters,
    upper_weights,
)
from ono.nn.lanes import Lane, lanes
from ono.nn.measure import Measure
from ono.nn.mlp import FFN
from ono.nn.whitening import Whitener, Whitening, count_all


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
        f"model.eigen.functions={share}": share in (16, 32),
        f"model.eigen.norm={eigen.norm}": eigen.norm in ("ortho", "none"),
        f"model.eigen.covariance={eigen.covariance}": eigen.covariance != "ema",
        f"model.eigen.measure={eigen.measure}": eigen.measure != "sum",
        f"model.eigen.value_projection={eigen.value_projection}": eigen.value_projection,
        f"model.eigen.bias={eigen.bias}": eigen.bias,
    }
    return next((option for option, met in demands.items() if not met), None)


def fuse_blocks(module: nn.Module, wanted: bool = True, *, beside: bool = True) -> int:
    """Let every ONO inside a module that can use the fused kernels; return how many there are.

    `beside` computes the two flows at the same time, on two streams of a GPU.
    """
    parts = [p for p in module.modules() if isinstance(p, ONO) and unfusable(p.config) is None]
    for part in parts:
        part.flows = partial(flows, beside=beside) if wanted else None
    return len(parts)


def flows(
    model: ONO,
    g: Float[Tensor, "batch points width"],
    h: Float[Tensor, "batch *time points width"],
    measure: Measure,
    *,
    beside: bool = True,
) -> Float[Tensor, "batch *time points out"]:
    """Return the output of a model from g⁰ and h¹ (Eqs. 3-9)."""
    lowers = cast("list[NNBlock]", list(model.lower))
    uppers = cast("list[OrthogonalBlock]", list(model.upper))
    h, totals, failures = _both_flows(lowers, uppers, g, h, measure, beside)
    norms = [upper.attention.norm for upper in uppers]
    pooled = [norm for norm in norms if isinstance(norm, Whitening)]
    if pooled:
        count_all(pooled, totals[:, 0], len(g))
    if isinstance(norms[0], Whitener):
        norms[0].count_failures(failures)
    with torch.autocast(h.device.type, enabled=False):
        return _head(cast(nn.Sequential, model.head), h)


# torch.compile, where it is asked for, takes what lies around the flows and leaves them alone.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _both_flows(
    lowers: list[NNBlock],
    uppers: list[OrthogonalBlock],
    g: Tensor,
    h: Tensor,
    measure: Measure,
    beside: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h after the last layer, and what `_Flows` says about covariances."""
    options = uppers[0].attention.options
    weights = None if measure.weights is None else measure.weights.contiguous()
    setting = Setting(weights, options.functions, ambient_precision(g.device))
    how = Whitened(options.norm == "ortho", options.covariance != "sample", options.ridge)
    below, above = _multiplied(lowers, uppers, setting.precision)
    layers = [
        _Own(
            lower_parameters(lower, upper.attention.w_q),
            upper.attention.raw_mu,
            upper_parameters(upper),
        )
        for lower, upper in zip(lowers, uppers, strict=True)
    ]
    plan = _Plan(setting, how, below, above, len(layers[0].lower), lowers[0].recompute, beside)
    parameters = [p for own in layers for p in (*own.lower, own.raw_mu, *own.upper)]
    with torch.cuda.device_of(g):  # kernels are launched on the current one
        found: tuple[Tensor, Tensor, Tensor] = _Flows.apply(g, h, plan, *parameters)  # type: ignore[no-untyped-call]
    return found


class _Own(NamedTuple):
    """The parameters of a layer."""

    lower: Sequence[Tensor]
    raw_mu: Tensor
    upper: Sequence[Tensor]


class _Plan(NamedTuple):
    """What both flows need beside their parameters."""

    setting: Setting
    how: Whitened
    below: list[list[Tensor]]
    above: list[list[Tensor]]
    of_lower: int
    forget: bool
    beside: bool

    def lanes(self, device: torch.device) -> list[Lane]:
        """Return where the upper flow, the lower flow, what is between and what is owed are made.

        What is forgotten is made again, and must not be given away while another lane reads it.
        """
        return lanes(4, device, beside=self.beside and not self.forget)

    def own(self, parameters: Sequence[Tensor]) -> list[_Own]:
        """Return the parameters of every layer, of which `of_lower` are of its lower block."""
        count = len(parameters) // len(self.below)
        parts = [parameters[start : start + count] for start in range(0, len(parameters), count)]
        at = self.of_lower
        return [_Own(part[:at], part[at], part[at + 1 :]) for part in parts]


class _Layer(NamedTuple):
    """What a layer keeps for the way back."""

    lower: LowerKept
    mixed: Mixed
    upper: UpperKept


# Layers by which the upper flow may be ahead on its way back: so many keep the gradient of ĝ.
_AHEAD = 2


class _Flows(torch.autograd.Function):
    """Both flows: the lower one is ahead of the upper one there, and behind it on the way back.

    Returned are h after the last layer and, for every layer, the sum over all samples of <ĝ, ĝ>
    and how many pivots of its factorisation were not positive.
    """

    @staticmethod
    def forward(ctx: Any, g: Tensor, h: Tensor, plan: _Plan, *parameters: Tensor) -> Any:
        setting, how, below, above, *_ = plan
        upper, lower, between, _ = plan.lanes(g.device)
        groups = 1 if how.pooled else len(g)
        shape = (len(below), groups, g.shape[-1] // setting.share, setting.share, setting.share)
        totals = g.new_empty(shape, dtype=torch.float64)
        failures = g.new_empty(shape[:3], dtype=torch.int32)
        lower.behind(upper)
        trace: list[tuple[Tensor, Tensor, Mixed] | _Layer] = []
        for layer, own in enumerate(plan.own(parameters)):
            with lower.open():
                left = lower_forward(g, own.lower, below[layer], setting)
            between.behind(lower)
            with between.open():
                grams = grams_of(left.features, setting)
                mixed = mixing_forward(grams, own.raw_mu, totals[layer], failures[layer], how)
            upper.behind(between)
            kept, after = upper_forward(
                h, left.features, mixed.kernel, own.upper, above[layer], setting
            )
            trace.append((g, h, mixed) if plan.forget else _Layer(left, mixed, kept))
            g, h = left.after, after
        ctx.save_for_backward(*parameters)
        ctx.trace, ctx.plan = trace, plan
        ctx.mark_non_differentiable(totals, failures)
        return h, totals, failures

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        setting, how, below, above, *_ = ctx.plan
        layers, d_h = ctx.plan.own(ctx.saved_tensors), gradients[0]
        if len(ctx.trace) < len(layers):
            raise RuntimeError("fused flows keep nothing for a second backward pass")
        upper, lower, between, beyond = ctx.plan.lanes(d_h.device)
        ahead = 0 if lower == upper else _AHEAD
        d_g: Tensor | None = None
        given: list[Tensor] = []
        held: deque[tuple[torch.cuda.Event | None, tuple[object, ...]]] = deque()
        for layer, own in reversed(list(enumerate(layers))):
            kept = _remembered(ctx.trace.pop(), own, below[layer], above[layer], setting)
            d_h, d_features, d_kernels, above_owed = upper_backward(
                kept.upper, d_h, own.upper, above[layer], setting
            )
            beyond.behind(upper)
            with beyond.open():
                of_upper = upper_gradients(above_owed, setting.precision)
            batch = len(kept.lower.g)
            between.behind(upper)
            with between.open():
                d_gram, d_raw_mu = mixing_backward(d_kernels, kept.mixed, own.raw_mu, batch, how)
            d_after = torch.zeros_like(kept.lower.after) if d_g is None else d_g
            lower.behind(upper)
            lower.behind(between)
            with lower.open():
                d_g, below_owed = lower_backward(
                    kept.lower, (d_after, d_features, d_gram), own.lower, below[layer], setting
                )
            beyond.behind(lower)
            with beyond.open():
                of_lower = lower_gradients(below_owed, setting.precision)
            given = [*of_lower, d_raw_mu, *of_upper, *given]
            gone = (d_after, d_features, d_kernels, d_gram, above_owed, below_owed)
            held.append((beyond.mark(), gone))
            del kept, gone, above_owed, below_owed
            if len(held) > ahead:
                done, _ = held.popleft()
                upper.wait(done)
                lower.wait(done)
        upper.behind(beyond)
        return d_g, d_h, None, *given


def _remembered(
    kept: tuple[Tensor, Tensor, Mixed] | _Layer,
    own: _Own,
    below: list[Tensor],
    above: list[Tensor],
    setting: Setting,
) -> _Layer:
    """Return what a layer keeps, made again from its inputs if they are all that was kept."""
    if isinstance(kept, _Layer):
        return kept
    g, h, mixed = kept
    lower = lower_forward(g, own.lower, below, setting)
    upper, _ = upper_forward(h, lower.features, mixed.kernel, own.upper, above, setting)
    return _Layer(lower, mixed, upper)


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
