"""A norm of torch in the place of orthonormalisation, between the kernels of both flows."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ono.nn.eigen_norm import PointBatchNorm, PointLayerNorm
from ono.nn.fused_interlude import Interlude, interlude
from ono.nn.fused_launch import Setting
from ono.nn.measure import Measure

Features = Float[Tensor, "batch points modes"]
Norm = PointBatchNorm | PointLayerNorm


def normed(norm: Norm, features: Features, setting: Setting) -> Interlude:
    """Return features behind a norm, which counts them in training."""
    own = {f"norm.{name}": p for name, p in norm.named_parameters()}
    return interlude(_Normalising(norm), own, [features], setting.measure, half=False)


class _Normalising(nn.Module):
    """A norm with the statistics of what it is given."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, features: Features, measure: Measure) -> Features:
        """Return the normalised features."""
        return self.norm.features(features, self.norm.statistics(features, measure))
