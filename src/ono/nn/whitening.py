"""Orthonormalisation in function space (Eqs. 7-9).

The columns of ĝ become orthonormal over samples and points together:
C = mean of ĝᵀĝ, C = L Lᵀ, ψ = ĝ L⁻ᵀ, so that the mean of ψᵀψ is L⁻¹ C L⁻ᵀ = I. With
covariance="sample" each sample has its own C: then ψ is orthonormal on every single domain, and
training and evaluation do the same.

Everything k×k is float64. Covariances of learned features reach condition numbers of 1e6 and
more, where float32 loses orthonormality and TF32 or bfloat16 make the factorisation fail.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ono.nn.eigen_options import EigenOptions
from ono.nn.heads import block_diagonal
from ono.nn.measure import Measure, along_points
from ono.nn.moments import Moments, observe_all
from ono.nn.recompute import Recomputable


def second_moments(
    g_hat: Float[Tensor, "batch points modes"], heads: int, measure: Measure
) -> Float[Tensor, "batch heads eigen eigen"]:
    """Return <ĝ_i, ĝ_j> of each sample within each head; their mean is Eq. 7. In float64."""
    moments: Tensor = _SecondMoments.apply(g_hat, heads, measure)  # type: ignore[no-untyped-call]
    return moments


class _SecondMoments(torch.autograd.Function):
    """A product of a function with itself: half the work, and no float64 kept for backward."""

    @staticmethod
    def forward(ctx: Any, g_hat: Tensor, heads: int, measure: Measure) -> Tensor:
        ctx.save_for_backward(g_hat)
        ctx.measure = measure
        wide = g_hat.unflatten(-1, (heads, -1)).transpose(1, 2)
        wide = wide.to(torch.float64, memory_format=torch.contiguous_format)
        return measure.inner(wide, wide)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (g_hat,) = ctx.saved_tensors
        both = (gradients[0] + gradients[0].mT).to(g_hat.dtype)
        weights = ctx.measure.weights
        with torch.autocast(g_hat.device.type, enabled=False):
            d_g_hat = g_hat @ block_diagonal(both)
        if weights is None:
            return d_g_hat / g_hat.shape[1], None, None
        return d_g_hat * along_points(weights, d_g_hat).to(d_g_hat.dtype), None, None


def inverse_cholesky(
    covariance: Float[Tensor, "*heads eigen eigen"], ridge: float
) -> tuple[Float[Tensor, "*heads eigen eigen"], Int[Tensor, " *heads"]]:
    """Return L⁻¹ with L Lᵀ = C + ridge·(tr C / k)·I, and LAPACK's info (0 where it worked).

    The ridge follows the scale of C, so multiplying the features by a constant changes nothing
    in ψ. Nothing here raises or waits for the device: a failure shows in `info` and as NaN, so no
    step that met one is applied.
    """
    found: tuple[Tensor, Tensor] = _InverseCholesky.apply(covariance, ridge)  # type: ignore[no-untyped-call]
    return found


class _InverseCholesky(torch.autograd.Function):
    """L⁻¹ and its gradient, -½ L⁻ᵀ (Φ + Φᵀ) L⁻¹ with Φ the lower half of dL⁻¹ L⁻ᵀ: no solves."""

    @staticmethod
    def forward(ctx: Any, covariance: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
        scale = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        real = scale > 0
        scale = torch.where(real, scale, torch.ones_like(scale))
        identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
        chol, info = torch.linalg.cholesky_ex(covariance / scale + ridge * identity)
        inverse = torch.linalg.solve_triangular(chol, identity.expand_as(chol), upper=False)
        # A factorisation that fails leaves numbers behind that look like any others.
        failed = (info != 0)[..., None, None]
        inverse = (inverse / scale.sqrt()).masked_fill(failed, torch.nan)
        ctx.save_for_backward(inverse, real, identity)
        ctx.ridge = ridge
        ctx.mark_non_differentiable(info)
        return inverse, info

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        inverse, real, identity = ctx.saved_tensors
        # The diagonal belongs to both halves.
        lower = (gradients[0] @ inverse.mT) * (torch.ones_like(identity).tril() - 0.5 * identity)
        product = inverse.mT @ lower @ inverse
        d_ridged = -torch.lerp(product, product.mT, 0.5)
        along = d_ridged.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * real
        return d_ridged + ctx.ridge * along * identity, None


class Whitener(Recomputable, ABC):
    """Whiten features with the factor L⁻¹ of a covariance, whatever it is the covariance of.

    ψ is seldom formed: attention uses ĝ itself with the k×k `kernel` between its columns.
    """

    failures: Tensor

    def __init__(self, options: EigenOptions) -> None:
        super().__init__()
        self.options = options
        self.register_buffer("failures", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def observe(self, g_hat: Float[Tensor, "batch points modes"], measure: Measure) -> None:
        """Add a batch to the sums of a calibration pass."""

    def covariance(
        self, g_hat: Float[Tensor, "batch points modes"], measure: Measure
    ) -> Float[Tensor, "*batch heads eigen eigen"]:
        """Return what is to be factored."""
        heads = self.options.heads
        return covariances([self], lambda: self.again(second_moments, g_hat, heads, measure)[None])[
            0
        ]

    def statistics(
        self, g_hat: Float[Tensor, "batch points modes"], measure: Measure
    ) -> Float[Tensor, "*batch heads eigen eigen"]:
        """Return L⁻¹."""
        with torch.autocast(g_hat.device.type, enabled=False):
            return self.factor(self.covariance(g_hat, measure))

    def features(
        self,
        g_hat: Float[Tensor, "*batch points modes"],
        statistics: Float[Tensor, "*some heads eigen eigen"],
    ) -> Float[Tensor, "*batch points modes"]:
        """Return what the kernel acts on: ĝ itself, as the whitening sits in the kernel."""
        return g_hat

    def kernel(
        self,
        mu: Float[Tensor, "*some heads eigen"],
        statistics: Float[Tensor, "*batch heads eigen eigen"],
    ) -> Float[Tensor, "*batch heads eigen eigen"]:
        """Return L⁻ᵀ diag(μ) L⁻¹, so that ĝ · kernel · ĝᵀ = ψ diag(μ) ψᵀ."""
        return statistics.mT @ (mu.double()[..., None] * statistics)

    def eigenfunctions(
        self,
        g_hat: Float[Tensor, "*batch points modes"],
        statistics: Float[Tensor, "*some heads eigen eigen"],
    ) -> Float[Tensor, "*batch points modes"]:
        """Return ψ = ĝ L⁻ᵀ (Eq. 8)."""
        return (g_hat.double() @ block_diagonal(statistics).mT).to(g_hat.dtype)

    def factor(
        self, covariance: Float[Tensor, "*batch heads eigen eigen"]
    ) -> Float[Tensor, "*batch heads eigen eigen"]:
        """Return L⁻¹ and count the factorisations that failed."""
        inverse, info = inverse_cholesky(covariance.double(), self.options.ridge)
        self.count_failures(info)
        return inverse

    @torch.no_grad()
    def count_failures(self, info: Int[Tensor, "*heads"]) -> None:
        """Count the factorisations that failed."""
        self.failures += (info != 0).sum()


class SampleWhitening(Whitener):
    """Whiten every sample with its own covariance, in training and evaluation alike.

    ψ is orthonormal on each domain by itself. Nothing is kept, so nothing needs calibration.
    """

    def observe(self, g_hat: Float[Tensor, "batch points modes"], measure: Measure) -> None:
        """Nothing is kept."""


class Whitening(Whitener):
    """Whiten all samples with one covariance: of the batch, the running or the exact one."""

    def __init__(self, options: EigenOptions) -> None:
        super().__init__(options)
        identity = torch.eye(options.functions).repeat(options.heads, 1, 1)
        self.moments = Moments(identity, options.momentum)

    def observe(self, g_hat: Float[Tensor, "batch points modes"], measure: Measure) -> None:
        """Add a batch to the sums of a calibration pass."""
        with torch.autocast(g_hat.device.type, enabled=False):
            total = second_moments(g_hat, self.options.heads, measure).sum(0)
            self.moments.observe(total, g_hat.shape[0])

    def frozen(self) -> Float[Tensor, "heads eigen eigen"]:
        """Return L⁻¹ of the covariance that evaluation uses: the exact or the running one."""
        return self.factor(self.remembered())

    def remembered(self) -> Float[Tensor, "heads eigen eigen"]:
        """Return the covariance that evaluation uses."""
        running = self.options.eval_covariance == "ema"
        return self.moments.recorded() if running else self.moments.known()


def covariances(
    layers: Sequence[Whitener],
    moments_of_all: Callable[[], Float[Tensor, "layers batch heads eigen eigen"]],
) -> Float[Tensor, "layers *batch heads eigen eigen"]:
    """Return what each layer is whitened with, from <ĝ, ĝ> of every sample; count it in training.

    It is that of each sample, of this batch, the running or the exact one.
    """
    pooled = [layer for layer in layers if isinstance(layer, Whitening)]
    if pooled and not pooled[0].training:
        return torch.stack([layer.remembered() for layer in pooled])
    moments = moments_of_all()
    if not pooled:
        return moments
    samples, totals = moments.shape[1], moments.sum(1)
    count_all(pooled, totals, samples)
    means = totals / samples
    if pooled[0].options.covariance == "ema":
        blends = [layer.moments.blend(mean) for layer, mean in zip(pooled, means, strict=True)]
        return torch.stack(blends)
    return means


def count_all(
    layers: Sequence[Whitening], totals: Float[Tensor, "layers heads eigen eigen"], samples: int
) -> None:
    """Count the sums of a training batch; exact means no longer belong to the weights."""
    observe_all([layer.moments for layer in layers], totals, samples)
    for layer in layers:
        layer.moments.state = "stale"


@torch.no_grad()
def orthonormality_defect(module: nn.Module) -> float | None:
    """Return the largest ‖mean of ψᵀψ - I‖ over all heads inside a calibrated module, if any.

    Over the calibration data the mean of ψᵀψ is L⁻¹ C L⁻ᵀ, so the matrices say it without the data.
    """
    defects = []
    for part in module.modules():
        if isinstance(part, Whitening):
            inverse, _ = inverse_cholesky(part.moments.exact, part.options.ridge)
            gram = inverse @ part.moments.exact @ inverse.mT
            identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
            defects.append(float(torch.linalg.matrix_norm(gram - identity).max()))
    return max(defects, default=None)


def failed_factorisations(module: nn.Module) -> int:
    """Return how many Cholesky factorisations have failed inside a module (waits for it)."""
    return sum(int(part.failures) for part in module.modules() if isinstance(part, Whitener))
