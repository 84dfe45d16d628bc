"""The options of Transolver (no torch, so that recipes are checked quickly)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class TransolverConfig(BaseModel, frozen=True, extra="forbid"):
    """Transolver (Wu et al., ICML 2024). Defaults are the released settings of Darcy flow.

    >>> TransolverConfig(slices=32).heads
    8
    """

    width: int = Field(128, gt=0, description="d, channels of a point")
    layers: int = Field(8, gt=0, description="blocks, one after the other")
    heads: int = Field(8, gt=0, description="of the attention")
    slices: int = Field(64, gt=0, description="G, tokens a head")
    ffn_ratio: float = Field(1.0, gt=0, description="hidden width of the FFNs over width")
    convolution: bool = Field(
        True, description="projections look at neighbours, where the mesh has axes"
    )
    position: Literal["coords", "distances"] = Field(
        "distances", description="distances: to the nodes of a reference grid (unified position)"
    )
    reference: int = Field(8, gt=1, description="nodes of that grid along each axis")
    measure: Literal["mean", "weights"] = Field(
        "mean", description="tokens: every point alike, or by quadrature weights"
    )
    query: Literal["linear", "nearest"] = Field(
        "linear", description="how inputs reach query points, without convolutions"
    )
    time_scale: float = Field(100.0, gt=0, description="multiplies times in [0, 1]; released: 1")
