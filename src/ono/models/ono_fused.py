"""Both flows of ONO through fused GPU kernels, where its configuration allows.

They are written for the configuration that is trained most: pre-norm blocks with efficient
attention, at most as many eigenfunctions as channels, FFNs as wide as the flows. Other attentions
of the lower flow, and norms in the place of orthonormalisation, are called between its kernels.
Everything else takes the plain path, and so does evaluation if it is not asked for. Both compute
the same function.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.models.ono import ONO
from ono.models.ono_config import LowerOptions, ONOConfig
from ono.models.ono_flows import Flows, Own, Plan
from ono.nn.attention import Attention, EfficientAttention, NystromAttention
from ono.nn.blocks import NNBlock, OrthogonalBlock
from ono.nn.fused_ends import MOST_OUTPUTS, Lifting, can_lift, lifted, projected
from ono.nn.fused_launch import WIDTHS, Setting, ambient_precision, operands
from ono.nn.fused_lower import lower_forward, lower_parameters, lower_weights
from ono.nn.fused_mixing import Whitened
from ono.nn.fused_normed import Norm
from ono.nn.fused_upper import upper_forward, upper_parameters, upper_weights
from ono.nn.lanes import lanes
from ono.nn.measure import Measure
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
        f"model.lower.width={lower.width}": lower.width in (None, width),
        f"model.lower.layers={lower.layers}": lower.layers in (None, config.layers),
        f"model.lower.heads={lower.heads}": not is_fused(lower) or lower.heads * share == width,
        f"model.eigen.heads={eigen.heads}": width // share in (eigen.heads << n for n in range(4)),
        f"model.eigen.functions={share}": share in (16, 32),
        f"model.eigen.covariance={eigen.covariance}": eigen.covariance != "ema",
        f"model.eigen.measure={eigen.measure}": eigen.measure != "sum",
        f"model.eigen.value_projection={eigen.value_projection}": eigen.value_projection,
        f"model.eigen.bias={eigen.bias}": eigen.bias,
    }
    return next((option for option, met in demands.items() if not met), None)


def is_fused(lower: LowerOptions) -> bool:
    """Say whether the attention of the lower flow is made of kernels too, and not torch's."""
    return lower.attention == "efficient"


def fuse_blocks(module: nn.Module, wanted: bool = True, *, streams: bool = True) -> int:
    """Let every ONO inside a module that can use the fused kernels; return how many there are.

    `streams` computes the two flows at the same time, on streams of a GPU.
    """
    parts = [p for p in module.modules() if isinstance(p, ONO) and unfusable(p.config) is None]
    for part in parts:
        part.flows = partial(flows, streams=streams) if wanted else None
    return len(parts)


def fuse_landmarks(module: nn.Module, wanted: bool) -> None:
    """Let Nyström attention inside a module use kernels for few landmarks where a GPU has them."""
    for part in module.modules():
        if isinstance(part, NystromAttention):
            part.kernels = wanted


@contextlib.contextmanager
def fused_evaluation(module: nn.Module) -> Iterator[int]:
    """Let every calibrated ONO inside a module that can be evaluated by the fused kernels as well.

    Only calls without gradients and at the input points are. Yields how many operators there are.
    """
    parts = [
        part
        for part in module.modules()
        if isinstance(part, ONO)
        and unfusable(part.config) is None
        and is_fused(part.config.lower)
        and isinstance(part.upper[0].attention.norm, Whitening)
    ]
    before = [part.folded_flows for part in parts]
    try:
        for part in parts:
            part.folded_flows = folded_flows
        yield len(parts)
    finally:
        for part, known in zip(parts, before, strict=True):
            part.folded_flows = known


def flows(
    model: ONO,
    inputs: Float[Tensor, "batch points inputs"],
    time: Tensor | None,
    measure: Measure,
    *,
    streams: bool = True,
) -> Float[Tensor, "batch *time points out"]:
    """Return the output of a model from what it is told at each point (Eqs. 3-9)."""
    g, h = _lifted(model, inputs, time, streams)
    lowers = cast("list[NNBlock]", list(model.lower))
    uppers = cast("list[OrthogonalBlock]", list(model.upper))
    h, totals, failures = _both_flows(lowers, uppers, g, h, measure, streams)
    norms = [upper.attention.norm for upper in uppers]
    pooled = [norm for norm in norms if isinstance(norm, Whitening)]
    if pooled:
        count_all(pooled, totals[:, 0], len(g))
    if isinstance(norms[0], Whitener):
        norms[0].count_failures(failures)
    output: Tensor = _head(cast(nn.Sequential, model.head), h)
    return output


def folded_flows(
    model: ONO,
    inputs: Float[Tensor, "batch points inputs"],
    time: Tensor | None,
    measure: Measure,
) -> Float[Tensor, "batch *time points out"]:
    """Return the output of a calibrated model, whose k×k kernels are constants, for evaluation."""
    g, h = _lifted(model, inputs, time, streams=True)
    lowers = cast("list[NNBlock]", list(model.lower))
    uppers = cast("list[OrthogonalBlock]", list(model.upper))
    setting = _setting(uppers, measure, g.device)
    below, above = _multiplied(lowers, uppers, setting.precision)
    held = [g]  # what one flow has made and the other reads, until both have come together
    with torch.cuda.device_of(g), lanes(2, g.device, beside=True) as (first, second):
        second.behind(first)
        for layer, (lower, upper) in enumerate(zip(lowers, uppers, strict=True)):
            own = lower_parameters(lower, upper.attention.w_q)
            with second.open():
                left = lower_forward(g, own, below[layer], setting)
            g = left.after
            held.append(left.features)
            first.behind(second)
            kernel = upper.attention.folded[None]
            own = upper_parameters(upper)
            _, h = upper_forward(h, left.features, kernel, own, above[layer], setting)
    output: Tensor = _head(cast(nn.Sequential, model.head), h)
    return output


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _lifted(
    model: ONO, inputs: Tensor, time: Tensor | None, streams: bool
) -> tuple[Tensor, Tensor]:
    """Return g⁰ and h¹."""
    if model.config.encoder == "shared" or not can_lift(inputs):
        return model.lift(inputs, time)
    how = Lifting(ambient_precision(inputs.device), streams)
    with torch.cuda.device_of(inputs):
        g, h = lifted([model.encoder_g, model.encoder_h], inputs, how)
    return model.at_times(g, h, time)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _head(head: nn.Sequential, h: Tensor) -> Tensor:
    norm, layer = head
    small = isinstance(layer, nn.Linear) and layer.out_features <= MOST_OUTPUTS
    if not small:
        return cast(Tensor, head(h))
    with torch.cuda.device_of(h):
        return projected(cast(nn.LayerNorm, norm), cast(nn.Linear, layer), h)


# torch.compile, where it is asked for, takes what lies around the flows and leaves them alone.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _both_flows(
    lowers: list[NNBlock],
    uppers: list[OrthogonalBlock],
    g: Tensor,
    h: Tensor,
    measure: Measure,
    streams: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h after the last layer, and what `Flows` says about covariances."""
    options = uppers[0].attention.options
    setting = _setting(uppers, measure, g.device)
    how = Whitened(options.norm == "ortho", options.covariance != "sample", options.ridge)
    below, above = _multiplied(lowers, uppers, setting.precision)
    norms = [_of_torch(upper.attention.norm) for upper in uppers]
    layers = [
        Own(
            lower_parameters(lower, upper.attention.w_q),
            upper.attention.raw_mu,
            [] if norm is None else list(norm.parameters()),
            upper_parameters(upper),
        )
        for lower, upper, norm in zip(lowers, uppers, norms, strict=True)
    ]
    plan = Plan(
        setting, how, _attentions(lowers), norms, below, above,
        len(layers[0].lower), len(layers[0].norm), lowers[0].recompute, streams,
    )  # fmt: skip
    parameters = [p for own in layers for p in (*own.lower, own.raw_mu, *own.norm, *own.upper)]
    with torch.cuda.device_of(g):  # kernels are launched on the current one
        found: tuple[Tensor, Tensor, Tensor] = Flows.apply(g, h, plan, *parameters)  # type: ignore[no-untyped-call]
    return found


def _attentions(lowers: list[NNBlock]) -> list[Attention] | list[None]:
    """Return the attentions that are called between kernels, or nothing for each layer."""
    if isinstance(lowers[0].attention, EfficientAttention):
        return [None] * len(lowers)
    return [lower.attention for lower in lowers]


def _of_torch(norm: nn.Module) -> Norm | None:
    """Return a norm that is called between kernels, or nothing if they do without."""
    return norm if isinstance(norm, Norm) else None


def _setting(uppers: list[OrthogonalBlock], measure: Measure, device: torch.device) -> Setting:
    weights = None if measure.weights is None else measure.weights.contiguous()
    share = uppers[0].attention.options.functions
    return Setting(weights, share, ambient_precision(device), measure.padded)


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
