"""The options of the Galerkin Transformer (no torch, so that recipes are checked quickly)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class GalerkinConfig(BaseModel, frozen=True, extra="forbid"):
    """The Galerkin Transformer. Defaults are the published model of Darcy flow.

    "scaled" runs attention on a coarse grid between two scalers; "lite" runs it on the grid
    itself. Both end in spectral layers and need a uniform grid. "points" has neither and runs on
    any points.

    >>> GalerkinConfig().form, GalerkinConfig.lite().width
    ('auto', 48)
    """

    form: Literal["auto", "scaled", "lite", "points"] = Field(
        "auto", description="auto: scaled on uniform grids, points elsewhere"
    )
    width: int = Field(128, gt=0, description="d, channels of the attention layers")
    layers: int = Field(6, gt=0, description="blocks, one after the other")
    heads: int = Field(4, gt=0, description="of the attention")
    norm: Literal["heads", "block"] = Field(
        "heads", description="layer norms on k and v of each head, or after attention and FFN"
    )
    norm_eps: float = Field(1e-7, gt=0, description="of the layer norms; results depend on it")
    coarse: int = Field(43, gt=1, description="scaled: most nodes along an axis for attention")
    spectral_width: int = Field(32, gt=0, description="channels of the two spectral layers")
    modes: int = Field(12, gt=0, description="wave numbers kept along each axis")
    boundary: Literal["free", "constant"] = Field(
        "free", description="constant: on the rim of a grid, one learned value for each output"
    )
    measure: Literal["mean", "weights"] = Field(
        "mean", description="the sum over points: 1/M, or quadrature weights off the grid"
    )
    dropout: float = Field(0.05, ge=0, lt=1, description="down-scaler, attention and FFN")

    @classmethod
    def lite(cls) -> GalerkinConfig:
        """Return the small published model of Navier-Stokes."""
        return cls(
            form="lite",
            width=48,
            layers=4,
            heads=1,
            norm="block",
            norm_eps=1e-5,
            spectral_width=20,
        )
