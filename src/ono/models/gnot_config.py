"""The options of GNOT (no torch, so that recipes are checked quickly)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class GNOTConfig(BaseModel, frozen=True, extra="forbid"):
    """The General Neural Operator Transformer. Defaults are the middle of its published range.

    >>> GNOTConfig(width=96).experts
    3
    """

    width: int = Field(128, gt=0, description="d, channels of trunk, branches and blocks")
    layers: int = Field(3, gt=0, description="blocks")
    heads: int = Field(1, gt=0, description="of the attentions")
    experts: int = Field(3, gt=0, description="networks that the gate mixes by place")
    mlp_layers: int = Field(3, ge=0, description="hidden layers of trunk, branches and head")
    inner_ratio: float = Field(4.0, gt=0, description="hidden width of experts and gate over d")
    inputs: Literal["joined", "separate"] = Field(
        "joined", description="all channels as one input function, or each as one of its own"
    )
    measure: Literal["mean", "weights"] = Field(
        "mean", description="sums over points: every point alike, or by quadrature weights"
    )
