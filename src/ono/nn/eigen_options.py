"""The options of orthogonal attention (no torch, so that recipes are checked quickly)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class EigenOptions(BaseModel, frozen=True, extra="forbid"):
    """How a layer makes and uses its eigenfunctions."""

    functions: int = Field(16, gt=0, description="k, eigenfunctions per head")
    heads: int = Field(8, gt=0, description="sets of eigenfunctions, each for its own channels")
    norm: Literal["ortho", "bn", "ln", "none"] = Field(
        "ortho", description="orthonormalisation, or what the paper's ablation puts in its place"
    )
    covariance: Literal["batch", "ema", "sample"] = Field(
        "batch",
        description="what whitens: the batch, the running estimate, or each sample itself, then "
        "at evaluation too",
    )
    eval_covariance: Literal["calibrated", "ema"] = Field(
        "calibrated", description="what whitens at evaluation"
    )
    measure: Literal["mean", "sum", "weights"] = Field(
        "weights",
        description="inner product: 1/M, the released sum, or quadrature weights (1/M if none)",
    )
    value_projection: bool = Field(True, description="w_V of Eq. 5")
    bias: bool = Field(True, description="a bias in w_Q, so that a constant mode exists")
    ridge: float = Field(1e-5, ge=0, description="added to C, relative to its mean diagonal")
    momentum: float = Field(0.99, ge=0, lt=1, description="of the running estimate")
