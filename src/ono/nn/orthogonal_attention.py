"""Orthogonal attention (Eq. 5), evaluated on the latent side.

The paper forms ψ = ĝ L⁻ᵀ at every point and computes h̃ = ψ diag(μ) [ψᵀ (h w_V)]. With
S = ĝᵀ h, the k×d moment, the same number is ĝ · (L⁻ᵀ diag(μ) L⁻¹) · (S w_V): whitening and w_V
touch k rows instead of M points, and at evaluation the bracket is a constant.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ono.errors import RecipeError
from ono.nn.eigen_norm import PointBatchNorm, eigen_norm
from ono.nn.eigen_options import EigenOptions
from ono.nn.measure import Measure, along_points
from ono.nn.whitening import Whitening

Told = tuple[Tensor, Tensor]
"""What the input points tell the query points: the latent matrix and the statistics."""


class OrthogonalAttention(nn.Module):
    """Apply the kernel integral operator whose eigenfunctions are learned.

    Head e has its own eigenfunctions and eigenvalues, and acts on its own share of the channels.
    """

    folded: Tensor

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
        self.is_folded = False

    def get_extra_state(self) -> Tensor:
        """Return whether the kernel is folded, as a tensor."""
        return torch.tensor(self.is_folded)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over what `get_extra_state` returned."""
        self.is_folded = bool(state)

    @property
    def mu(self) -> Float[Tensor, "heads eigen"]:
        """The positive eigenvalues μ."""
        return F.softplus(self.raw_mu)

    def g_hat(
        self, g: Float[Tensor, "batch *time points lower"]
    ) -> Float[Tensor, "batch *time heads points eigen"]:
        """Project the lower flow (Eq. 4, before ort)."""
        projected: Tensor = self.w_q(g)
        return projected.unflatten(-1, (self.options.heads, -1)).transpose(-2, -3)

    def moment(
        self,
        psi: Float[Tensor, "batch *one heads points eigen"],
        h: Float[Tensor, "batch *time points width"],
        measure: Measure,
    ) -> Float[Tensor, "batch *time heads eigen share"]:
        """Return <ψ, h w_V>, head by head."""
        heads = self.options.heads
        if self.w_v is None:
            shares = h.unflatten(-1, (heads, -1)).transpose(-2, -3)
            moment = measure.inner(psi, shares)
        else:
            columns = psi.transpose(-2, -3).flatten(-2)
            moment = measure.inner(columns, h).unflatten(-2, (heads, -1))
            with torch.autocast(h.device.type, enabled=False):
                moment = moment @ self.w_v.weight.unflatten(0, (heads, -1)).mT.to(moment.dtype)
        if isinstance(measure.total, float):
            return moment * measure.total
        return moment * measure.total.reshape(-1, *(1,) * (moment.ndim - 1))

    def kernel(
        self, g_hat: Float[Tensor, "batch heads points eigen"], measure: Measure
    ) -> tuple[Float[Tensor, "heads eigen eigen"], Tensor]:
        """Return the kernel between features, folded or fresh, and the statistics it came from."""
        if self.is_folded and not self.training and isinstance(self.norm, Whitening):
            self.norm.moments.known()
            return self.folded, self.folded
        statistics = self.norm.statistics(g_hat, measure)
        return self.norm.kernel(self.mu, statistics), statistics

    def forward(
        self,
        g: Float[Tensor, "batch *one points lower"],
        h: Float[Tensor, "batch *time points width"],
        measure: Measure,
        statistics: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch *time points width"], Told]:
        """Return h̃ (Eq. 5) and what query points need to compute theirs."""
        g_hat = self.g_hat(g)
        if statistics is None:
            kernel, statistics = self.kernel(g_hat.flatten(0, -4), measure)
        else:
            kernel = self.norm.kernel(self.mu, statistics)
        psi = self.norm.features(g_hat, statistics)
        moment = self.moment(psi, h, measure)
        with torch.autocast(h.device.type, enabled=False):
            latent = kernel @ moment.double()
        return self._spread(psi, latent), (latent, statistics)

    def read(
        self, g: Float[Tensor, "batch *one queries lower"], told: Told
    ) -> Float[Tensor, "batch *time queries width"]:
        """Return h̃ at points that took no part in the moment (Eq. 20)."""
        latent, statistics = told
        return self._spread(self.norm.features(self.g_hat(g), statistics), latent)

    def _spread(
        self,
        psi: Float[Tensor, "batch *one heads points eigen"],
        latent: Float[Tensor, "batch *time heads eigen share"],
    ) -> Float[Tensor, "batch *time points width"]:
        return (psi @ latent.to(psi.dtype)).transpose(-2, -3).flatten(-2)

    def observe(
        self, g: Float[Tensor, "batch points lower"], measure: Measure
    ) -> None:
        """Add a batch to a calibration pass."""
        self.norm.observe(self.g_hat(g), measure)

    @torch.no_grad()
    def settle(self) -> None:
        """End a calibration pass and store the kernel as a constant: evaluation is then matmuls."""
        if isinstance(self.norm, Whitening | PointBatchNorm):
            self.norm.moments.settle()
        if isinstance(self.norm, Whitening):
            self.folded.copy_(self.norm.kernel(self.mu, self.norm.frozen()))
            self.is_folded = True

    def eigenfunctions(
        self, g: Float[Tensor, "batch points lower"], measure: Measure
    ) -> Float[Tensor, "batch heads points eigen"]:
        """Return ψ at the points of a batch (Eq. 8)."""
        g_hat = self.g_hat(g)
        return self.norm.eigenfunctions(g_hat, self.norm.statistics(g_hat, measure))


def paper_form(
    attention: OrthogonalAttention,
    g: Float[Tensor, "batch points lower"],
    h: Float[Tensor, "batch points width"],
    measure: Measure,
) -> Float[Tensor, "batch points width"]:
    """Evaluate Eq. 5 as it is printed, ψ at every point: the twin that tests compare with."""
    psi = attention.eigenfunctions(g, measure)
    heads, points = attention.options.heads, h.shape[-2]
    value = h if attention.w_v is None else cast(Tensor, attention.w_v(h))
    value = value.unflatten(-1, (heads, -1)).transpose(-2, -3)
    if measure.weights is None:
        value = value / points
    else:
        value = value * along_points(measure.weights, value)
    total = torch.as_tensor(measure.total, dtype=value.dtype, device=value.device)
    moment = psi.mT @ value * total.reshape(-1, 1, 1, 1)
    mixed = psi @ (attention.mu[..., None] * moment)
    return mixed.transpose(-2, -3).flatten(-2)

