"""From <ĝ, ĝ> to the kernel between the features of a layer, as one GPU kernel there and back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

_TILE = 4096


class Whitened(NamedTuple):
    """How the kernels of a layer are made: whitened or not, by one covariance for all or each."""

    white: bool
    pooled: bool
    ridge: float


class Mixed(NamedTuple):
    """The kernels of a layer, [groups heads eigen eigen], and what they are made from."""

    kernel: Tensor
    factor: Tensor


def mixing_forward(
    grams: Float[Tensor, "batch parts share width"],
    raw_mu: Float[Tensor, "heads eigen"],
    totals: Float[Tensor, "groups heads eigen eigen"],
    failures: Tensor,
    how: Whitened,
) -> Mixed:
    """Return L⁻ᵀ diag(μ) L⁻¹; fill in the sums of <ĝ, ĝ> and how often a pivot was not positive."""
    from ono.nn.mixing_triton import gram_sums, mixing

    batch, parts, share, width = grams.shape
    groups = len(totals)
    kernel, factor = torch.empty_like(totals), torch.empty_like(totals)
    gram_sums[share, groups](
        grams, totals, batch * parts // groups, at_once=_TILE // width, share=share, width=width
    )
    mixing[width // share, groups](
        totals, raw_mu, factor, kernel, failures, batch // groups,
        white=how.white, ridge=how.ridge, share=share, num_warps=share // 16,
    )  # fmt: skip
    return Mixed(kernel, factor)


def mixing_backward(
    d_kernels: Float[Tensor, "parts heads eigen eigen"],
    mixed: Mixed,
    raw_mu: Float[Tensor, "heads eigen"],
    batch: int,
    how: Whitened,
) -> tuple[Float[Tensor, "batch share width"], Float[Tensor, "heads eigen"]]:
    """Return the gradients of <ĝ, ĝ> of every sample and of the parameter of μ.

    That of a kernel is given in parts to be added, those of the same kernel in a row.
    """
    from ono.nn import mixing_triton

    groups, heads, share, _ = mixed.kernel.shape
    d_gram = d_kernels.new_empty(batch, share, heads * share)
    d_raw_mu = d_kernels.new_empty(groups, heads, share)
    mixing_triton.mixing_backward[heads, groups](
        d_kernels, mixed.factor, raw_mu, d_gram, d_raw_mu, len(d_kernels) // groups,
        batch // groups, at_once=_TILE // share**2, white=how.white, ridge=how.ridge, share=share,
        width=heads * share, num_warps=4,
    )  # fmt: skip
    return d_gram, d_raw_mu[0] if groups == 1 else d_raw_mu.sum(0)
