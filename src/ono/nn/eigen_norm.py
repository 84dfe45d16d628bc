"""What the paper's ablation puts in the place of orthonormalisation: BN, LN or nothing.

Each has the methods of `Whitening`: the statistics of a batch, the features made with them, and
the kernel between those features, which here is only diag(μ).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.nn.eigen_options import EigenOptions
from ono.nn.measure import Measure
from ono.nn.moments import Moments
from ono.nn.whitening import (
    SampleWhitening,
    Whitener,
    Whitening,
    covariances,
    second_moments,
)


class NoNorm(nn.Module):
    """Use the features as they are."""

    def observe(self, g_hat: Float[Tensor, "batch points modes"], measure: Measure) -> None:
        """Nothing is kept."""

    def statistics(
        self, g_hat: Float[Tensor, "batch points modes"], measure: Measure
    ) -> Float[Tensor, "*shape"]:
        """Return an empty tensor: there are no statistics."""
        return g_hat.new_empty(0)

    def features(
        self, g_hat: Float[Tensor, "*batch points modes"], statistics: Float[Tensor, "*shape"]
    ) -> Float[Tensor, "*batch points modes"]:
        """Return ĝ."""
        return g_hat

    def kernel(
        self, mu: Float[Tensor, "*layers heads eigen"], statistics: Float[Tensor, "*shape"]
    ) -> Float[Tensor, "*layers heads eigen eigen"]:
        """Return diag(μ)."""
        return torch.diag_embed(mu.double())

    def eigenfunctions(
        self, g_hat: Float[Tensor, "*batch points modes"], statistics: Float[Tensor, "*shape"]
    ) -> Float[Tensor, "*batch points modes"]:
        """Return the features: these variants have no other basis."""
        return self.features(g_hat, statistics)


class PointLayerNorm(NoNorm):
    """Normalise the k features of each point."""

    def __init__(self, options: EigenOptions) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(options.functions)

    def features(
        self, g_hat: Float[Tensor, "*batch points modes"], statistics: Float[Tensor, "*shape"]
    ) -> Float[Tensor, "*batch points modes"]:
        """Return LN(ĝ)."""
        normalised: Tensor = self.norm(g_hat.unflatten(-1, (-1, *self.norm.normalized_shape)))
        return normalised.flatten(-2)


class PointBatchNorm(NoNorm):
    """Normalise each feature over points and samples, without mixing the features."""

    def __init__(self, options: EigenOptions, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.options = options
        self.epsilon = epsilon
        modes = options.heads * options.functions
        untrained = torch.stack((torch.zeros(modes), torch.ones(modes)))
        self.moments = Moments(untrained, options.momentum)
        self.weight = nn.Parameter(torch.ones(modes))
        self.bias = nn.Parameter(torch.zeros(modes))

    def _sums(
        self, g_hat: Float[Tensor, "batch points modes"], measure: Measure
    ) -> Float[Tensor, "2 modes"]:
        wide = g_hat.double()
        ones = torch.ones_like(wide[..., :1])
        powers = [measure.inner(ones, x).sum((0, 1)) for x in (wide, wide.square())]
        return torch.stack(powers)

    def observe(self, g_hat: Float[Tensor, "batch points modes"], measure: Measure) -> None:
        """Add a batch to the sums of a calibration pass."""
        with torch.autocast(g_hat.device.type, enabled=False):
            self.moments.observe(self._sums(g_hat, measure), g_hat.shape[0])

    def statistics(
        self, g_hat: Float[Tensor, "batch points modes"], measure: Measure
    ) -> Float[Tensor, "2 modes"]:
        """Return the mean and the mean square of each feature."""
        with torch.autocast(g_hat.device.type, enabled=False):
            if self.training:
                total = self._sums(g_hat, measure)
                self.moments.observe(total, g_hat.shape[0])
                self.moments.state = "stale"
                mean = total / g_hat.shape[0]
                return self.moments.blend(mean) if self.options.covariance == "ema" else mean
            if self.options.eval_covariance == "ema":
                return self.moments.recorded()
            return self.moments.known()

    def features(
        self, g_hat: Float[Tensor, "*batch points modes"], statistics: Float[Tensor, "*shape"]
    ) -> Float[Tensor, "*batch points modes"]:
        """Return (ĝ - mean) / std, scaled and shifted."""
        mean, square = statistics.unbind(0)
        deviation = (square - mean.square()).clamp_min(0) + self.epsilon
        mean, deviation = mean.to(g_hat.dtype), deviation.to(g_hat.dtype)
        return (g_hat - mean) * deviation.rsqrt() * self.weight + self.bias


EigenNorm = Whitening | SampleWhitening | PointBatchNorm | PointLayerNorm | NoNorm


def eigen_norm(options: EigenOptions) -> EigenNorm:
    """Build the normalisation that the options name."""
    match options.norm:
        case "ortho":
            alone = options.covariance == "sample"
            return SampleWhitening(options) if alone else Whitening(options)
        case "bn":
            return PointBatchNorm(options)
        case "ln":
            return PointLayerNorm(options)
        case "none":
            return NoNorm()


def statistics_of_all(
    norms: Sequence[EigenNorm],
    g_hats: Sequence[Float[Tensor, "batch points modes"]],
    measure: Measure,
) -> Float[Tensor, layers * shape]:
    """Return the statistics of several layers; covariances are factored in one call."""
    first = norms[0]
    if not isinstance(first, Whitener):
        pairs = zip(norms, g_hats, strict=True)
        return torch.stack([norm.statistics(g_hat, measure) for norm, g_hat in pairs])
    whiteners = [norm for norm in norms if isinstance(norm, Whitener)]

    def moments() -> Tensor:
        pairs = zip(whiteners, g_hats, strict=True)
        heads = first.options.heads
        return torch.stack([norm.again(second_moments, g, heads, measure) for norm, g in pairs])

    with torch.autocast(g_hats[0].device.type, enabled=False):
        return first.factor(covariances(whiteners, moments))
