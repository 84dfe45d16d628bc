"""Orthogonal attention (Eq. 5), evaluated on the latent side.

The paper forms ψ = ĝ L⁻ᵀ at every point and computes h̃ = ψ diag(μ) [ψᵀ (h w_V)]. With
S = ĝᵀ h, the k×d moment, the same number is ĝ · (L⁻ᵀ diag(μ) L⁻¹) · (S w_V): whitening and w_V
touch k rows instead of M points, and at evaluation the bracket is a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ono.errors import RecipeError
from ono.nn.eigen_norm import PointBatchNorm, eigen_norm, statistics_of_all
from ono.nn.eigen_options import EigenOptions
from ono.nn.heads import block_diagonal, same_head
from ono.nn.measure import Measure, along_points
from ono.nn.whitening import Whitening

Told = tuple[Tensor, Tensor]
"""What the input points tell others: the latent matrix, and the statistics of their features."""


class Basis(NamedTuple):
    """The features of a layer at some points, and how they mix: ψ diag(μ) ψᵀ = f · mixing · fᵀ.

    `mixing` has a block for every head, one matrix for all samples or one for each.
    """

    features: Float[Tensor, "batch *one points modes"]
    mixing: Float[Tensor, "*some modes modes"]
    statistics: Tensor

    def beside(self, h: Float[Tensor, "batch *time points width"]) -> Basis:
        """Return this basis with an axis for the times that h has and it does not."""
        if h.ndim == self.features.ndim:
            return self
        mixing = self.mixing if self.mixing.ndim == 2 else self.mixing[:, None]
        return Basis(self.features[:, None], mixing, self.statistics)


class OrthogonalAttention(nn.Module):
    """Apply the kernel integral operator whose eigenfunctions are learned.

    Head e has its own eigenfunctions and eigenvalues, and acts on its own share of the channels.
    """

    folded: Tensor
    own_channels: Tensor

    def __init__(self, width: int, lower_width: int, options: EigenOptions) -> None:
        super().__init__()
        if width % options.heads:
            raise RecipeError(
                f"model.width must be a multiple of model.eigen.heads, got {width} and "
                f"{options.heads}"
            )
        self.options = options
        self.w_q = nn.Linear(lower_width, options.heads * options.functions, bias=options.bias)
        self.w_v = nn.Linear(width, width, bias=False) if options.value_projection else None
        self.raw_mu = nn.Parameter(torch.zeros(options.heads, options.functions))
        self.norm = eigen_norm(options)
        kernel = torch.eye(options.functions).repeat(options.heads, 1, 1)
        self.register_buffer("folded", kernel.double() * F.softplus(torch.zeros(())))
        modes = options.heads * options.functions
        own = same_head(options.heads, modes, width)
        self.register_buffer("own_channels", own, persistent=False)
        self.fold = True

    @property
    def mu(self) -> Float[Tensor, "heads eigen"]:
        """The positive eigenvalues μ."""
        return F.softplus(self.raw_mu)

    def moment(
        self,
        psi: Float[Tensor, "batch *one points modes"],
        h: Float[Tensor, "batch *time points width"],
        measure: Measure,
    ) -> Float[Tensor, "batch *time modes width"]:
        """Return <ψ, h w_V>, each head with its own channels only."""
        moment = measure.inner(psi, h)
        if self.w_v is not None:
            with torch.autocast(h.device.type, enabled=False):
                moment = moment @ self.w_v.weight.mT.to(moment.dtype)
        moment = moment * self.own_channels.to(moment.dtype)
        if isinstance(measure.total, float):
            return moment * measure.total
        return moment * measure.total.reshape(-1, *(1,) * (moment.ndim - 1))

    def basis(self, g: Float[Tensor, "batch points lower"], measure: Measure) -> Basis:
        """Return the features at the points and their mixing, folded or fresh."""
        return bases([self], [g], measure)[0]

    def elsewhere(self, g: Float[Tensor, "batch queries lower"], basis: Basis) -> Basis:
        """Return the features at other points, with the mixing of a basis."""
        return basis._replace(features=self.norm.features(self.w_q(g), basis.statistics))

    def forward(
        self, basis: Basis, h: Float[Tensor, "batch *time points width"], measure: Measure
    ) -> tuple[Float[Tensor, "batch *time points width"], Told]:
        """Return h̃ (Eq. 5) and what query points need to compute theirs."""
        features, mixing, statistics = basis.beside(h)
        moment = self.moment(features, h, measure)
        with torch.autocast(h.device.type, enabled=False):
            latent = (mixing @ moment.double()).to(moment.dtype)
        return features @ latent.to(features.dtype), (latent, statistics)

    def read(
        self, g: Float[Tensor, "batch queries lower"], told: Told
    ) -> Float[Tensor, "batch *time queries width"]:
        """Return h̃ at points that took no part in the moment (Eq. 20)."""
        latent, statistics = told
        features = self.norm.features(self.w_q(g), statistics)
        if latent.ndim > features.ndim:
            features = features[:, None]
        return features @ latent.to(features.dtype)

    def observe(self, g: Float[Tensor, "batch points lower"], measure: Measure) -> None:
        """Add a batch to a calibration pass."""
        self.norm.observe(self.w_q(g), measure)

    @torch.no_grad()
    def settle(self) -> None:
        """End a calibration pass and store the kernel as a constant: evaluation is then matmuls."""
        if isinstance(self.norm, Whitening | PointBatchNorm):
            self.norm.moments.settle()
        if isinstance(self.norm, Whitening):
            self.folded.copy_(self.norm.kernel(self.mu, self.norm.frozen()))

    @property
    def is_folded(self) -> bool:
        """Whether the constant kernel belongs to the present weights and may be used."""
        calibrated = isinstance(self.norm, Whitening) and self.norm.moments.state == "calibrated"
        return self.fold and calibrated

    def eigenfunctions(
        self, g: Float[Tensor, "batch points lower"], measure: Measure
    ) -> Float[Tensor, "batch points heads eigen"]:
        """Return ψ at the points of a batch (Eq. 8)."""
        g_hat = self.w_q(g)
        psi = self.norm.eigenfunctions(g_hat, self.norm.statistics(g_hat, measure))
        heads: Tensor = psi.unflatten(-1, (self.options.heads, -1))
        return heads


def bases(
    attentions: Sequence[OrthogonalAttention],
    flow: Sequence[Float[Tensor, "batch points lower"]],
    measure: Measure,
) -> list[Basis]:
    """Return the basis of every layer from the lower flow after each of its blocks.

    The lower flow never sees the upper one, so all covariances are known before the first upper
    layer: they are factored together, in one call for all layers.
    """
    g_hats = [attention.w_q(g) for attention, g in zip(attentions, flow, strict=True)]
    first = attentions[0]
    if first.training or not first.is_folded:
        statistics = statistics_of_all([a.norm for a in attentions], g_hats, measure)
        mixing = block_diagonal(kernels(attentions, statistics))
    else:
        statistics = torch.stack([attention.folded for attention in attentions])
        mixing = block_diagonal(statistics)
    return [
        Basis(attention.norm.features(g_hat, own), matrix, own)
        for attention, g_hat, own, matrix in zip(
            attentions, g_hats, statistics.unbind(0), mixing.unbind(0), strict=True
        )
    ]


def kernels(
    attentions: Sequence[OrthogonalAttention], statistics: Float[Tensor, layers * shape]
) -> Float[Tensor, "layers *batch heads eigen eigen"]:
    """Return the kernel between the features of every layer from its eigenvalues and statistics."""
    mu = F.softplus(torch.stack([attention.raw_mu for attention in attentions]))
    if statistics.ndim > 4:  # samples stand between layers and heads
        mu = mu[:, None]
    return attentions[0].norm.kernel(mu, statistics)


def paper_form(
    attention: OrthogonalAttention,
    g: Float[Tensor, "batch points lower"],
    h: Float[Tensor, "batch points width"],
    measure: Measure,
) -> Float[Tensor, "batch points width"]:
    """Evaluate Eq. 5 as it is printed, ψ at every point: the twin that tests compare with."""
    psi = attention.eigenfunctions(g, measure).transpose(1, 2)
    value = h if attention.w_v is None else cast(Tensor, attention.w_v(h))
    value = value.unflatten(-1, (attention.options.heads, -1)).transpose(1, 2)
    if measure.weights is None:
        value = value / h.shape[1]
    else:
        value = value * along_points(measure.weights, value)
    total = torch.as_tensor(measure.total, dtype=value.dtype, device=value.device)
    moment = psi.mT @ value * total.reshape(-1, 1, 1, 1)
    mixed: Tensor = psi @ (attention.mu[..., None] * moment)
    return mixed.transpose(1, 2).flatten(2)
