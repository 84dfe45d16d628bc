"""Both flows of ONO there and back on fused kernels, as one function for autograd.

The flows are computed beside each other: forward the lower one goes ahead, as it waits for nothing
of the upper one, and backward it follows. What lies between them - covariances and the k×k
kernels - and the gradients of parameters, for which nothing waits, have lanes of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ono.nn.attention import Attention
from ono.nn.fused_interlude import Interlude, interlude_backward
from ono.nn.fused_launch import Setting
from ono.nn.fused_lower import (
    LowerKept,
    grams_of,
    lower_backward,
    lower_forward,
    lower_gradients,
)
from ono.nn.fused_mixing import Mixed, Whitened, mixing_backward, mixing_forward
from ono.nn.fused_normed import Norm, normed
from ono.nn.fused_upper import UpperKept, upper_backward, upper_forward, upper_gradients
from ono.nn.lanes import Lane, lanes


class Own(NamedTuple):
    """The parameters of a layer."""

    lower: Sequence[Tensor]
    raw_mu: Tensor
    norm: Sequence[Tensor]
    upper: Sequence[Tensor]


class Plan(NamedTuple):
    """What both flows need beside their parameters."""

    setting: Setting
    how: Whitened
    attention: list[Attention] | list[None]
    norm: Sequence[Norm | None]
    below: list[list[Tensor]]
    above: list[list[Tensor]]
    of_lower: int
    of_norm: int
    forget: bool
    streams: bool

    def lanes(self, device: torch.device) -> AbstractContextManager[list[Lane]]:
        """Return where the upper flow, the lower flow, what is between and what is owed are made.

        What is forgotten is made again, and must not be given away while another lane reads it.
        """
        return lanes(4, device, beside=self.streams and not self.forget)

    def own(self, parameters: Sequence[Tensor]) -> list[Own]:
        """Return the parameters of every layer: so many are of its lower block and of a norm."""
        count = len(parameters) // len(self.below)
        parts = [parameters[start : start + count] for start in range(0, len(parameters), count)]
        at, end = self.of_lower, self.of_lower + 1 + self.of_norm
        return [Own(part[:at], part[at], part[at + 1 : end], part[end:]) for part in parts]


class _Between(NamedTuple):
    """What a layer knows between its flows: its kernels, and features behind a norm of torch."""

    mixed: Mixed
    normed: Interlude | None

    def features(self, g_hat: Tensor) -> Tensor:
        """Return what the kernels act on."""
        return g_hat if self.normed is None else self.normed.made.detach()


class _Layer(NamedTuple):
    """What a layer keeps for the way back."""

    lower: LowerKept
    between: _Between
    upper: UpperKept


# Layers by which the upper flow may be ahead on its way back: so many keep what others wait for.
_AHEAD = 2


class Flows(torch.autograd.Function):
    """Both flows: the lower one is ahead of the upper one there, and behind it on the way back.

    Returned are h after the last layer and, for every layer, the sum over all samples of <ĝ, ĝ>
    and how many pivots of its factorisation were not positive.
    """

    @staticmethod
    def forward(ctx: Any, g: Tensor, h: Tensor, plan: Plan, *parameters: Tensor) -> Any:
        """Go through all layers."""
        with plan.lanes(g.device) as used:
            found, ctx.trace = _forth(g, h, plan, plan.own(parameters), used)
        ctx.save_for_backward(*parameters)
        ctx.plan = plan
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Go back through all layers, once."""
        layers = ctx.plan.own(ctx.saved_tensors)
        if len(ctx.trace) < len(layers):
            raise RuntimeError("fused flows keep nothing for a second backward pass")
        with ctx.plan.lanes(gradients[0].device) as used:
            d_g, d_h, given = _back(gradients[0], ctx.plan, layers, ctx.trace, used)
        return d_g, d_h, None, *given


_Trace = list["tuple[Tensor, Tensor, _Between] | _Layer"]


def _forth(
    g: Tensor,
    h: Tensor,
    plan: Plan,
    layers: list[Own],
    used: list[Lane],
) -> tuple[tuple[Tensor, Tensor, Tensor], _Trace]:
    """Return what `Flows` returns, and what the way back needs of every layer."""
    setting, how, attention, norm, below, above, *_ = plan
    upper, lower, between, _ = used
    groups = 1 if how.pooled else len(g)
    heads, functions = layers[0].raw_mu.shape
    shape = (len(below), groups, heads, functions, functions)
    totals = g.new_empty(shape, dtype=torch.float64)
    failures = g.new_empty(shape[:3], dtype=torch.int32)
    lower.behind(upper)
    trace: _Trace = []
    for layer, own in enumerate(layers):
        with lower.open():
            left = lower_forward(g, own.lower, below[layer], setting, attention[layer])
        between.behind(lower)
        with between.open():
            grams = grams_of(left.features, setting)
            mixed = mixing_forward(grams, own.raw_mu, totals[layer], failures[layer], how)
            its = norm[layer]
            known = _Between(mixed, None if its is None else normed(its, left.features, setting))
        upper.behind(between)
        features = known.features(left.features)
        kept, after = upper_forward(h, features, mixed.kernel, own.upper, above[layer], setting)
        trace.append((g, h, known) if plan.forget else _Layer(left, known, kept))
        g, h = left.after, after
    return (h, totals, failures), trace


def _back(
    d_h: Tensor,
    plan: Plan,
    layers: list[Own],
    trace: _Trace,
    used: list[Lane],
) -> tuple[Tensor | None, Tensor, list[Tensor | None]]:
    """Return the gradients of g, of h and of all parameters; forget what was kept."""
    setting, how, _, _, below, above, *_ = plan
    upper, lower, between, beyond = used
    ahead = 0 if lower is upper else _AHEAD
    d_g: Tensor | None = None
    given: list[Tensor | None] = []
    held: deque[tuple[torch.cuda.Event | None, tuple[object, ...]]] = deque()
    for layer, own in reversed(list(enumerate(layers))):
        kept = _remembered(trace.pop(), own, plan, layer)
        d_h, d_features, d_kernels, above_owed = upper_backward(
            kept.upper, d_h, own.upper, above[layer], setting
        )
        beyond.behind(upper)
        with beyond.open():
            of_upper = upper_gradients(above_owed, setting.precision)
        batch = len(kept.lower.g)
        between.behind(upper)
        with between.open():
            mixed, its = kept.between
            d_gram, d_raw_mu = mixing_backward(d_kernels, mixed, own.raw_mu, batch, how)
            d_g_hat, of_norm = d_features, list[Tensor | None]()
            if its is not None:
                (d_g_hat,), of_norm = interlude_backward(its, d_features)
        d_after = torch.zeros_like(kept.lower.after) if d_g is None else d_g
        lower.behind(upper)
        lower.behind(between)
        with lower.open():
            behind = (d_after, d_g_hat, d_gram)
            d_g, below_owed, of_attention = lower_backward(
                kept.lower, behind, own.lower, below[layer], setting
            )
        beyond.behind(lower)
        with beyond.open():
            of_lower = lower_gradients(below_owed, setting.precision)
        given = [*of_lower, *of_attention, d_raw_mu, *of_norm, *of_upper, *given]
        read_elsewhere = (d_after, d_features, d_g_hat, d_kernels, d_gram, above_owed, below_owed)
        held.append((beyond.mark(), read_elsewhere))
        del kept, mixed, its, read_elsewhere, behind, d_after, d_features, d_g_hat, d_kernels
        del d_gram, above_owed, below_owed
        if len(held) > ahead:
            mark = held[0][0]
            upper.wait(mark)
            lower.wait(mark)
            held.popleft()
    return d_g, d_h, given


def _remembered(
    kept: tuple[Tensor, Tensor, _Between] | _Layer, own: Own, plan: Plan, layer: int
) -> _Layer:
    """Return what a layer keeps, made again from its inputs if little more was kept.

    What lies between the flows is not made again, it has been counted; a norm of torch there has
    kept its whole history.
    """
    if isinstance(kept, _Layer):
        return kept
    g, h, known = kept
    setting = plan.setting
    lower = lower_forward(g, own.lower, plan.below[layer], setting, plan.attention[layer])
    features, kernel = known.features(lower.features), known.mixed.kernel
    upper, _ = upper_forward(h, features, kernel, own.upper, plan.above[layer], setting)
    return _Layer(lower, known, upper)
