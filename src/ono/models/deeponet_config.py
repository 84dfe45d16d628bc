"""The options of DeepONet (no torch, so that recipes are checked quickly)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class DeepONetConfig(BaseModel, frozen=True, extra="forbid"):
    """DeepONet (Lu et al., 2021). Defaults are those published for elasticity.

    They suit every kind of mesh. Darcy flow was published with `branch="conv"`, width 128 and
    four layers.

    >>> DeepONetConfig(layers=4).outputs
    'independent'
    """

    width: int = Field(256, gt=0, description="p, terms of the sum, and width of all layers")
    layers: int = Field(5, gt=1, description="linear layers of the trunk, and of an mlp branch")
    branch: Literal["mlp", "conv"] = Field("mlp", description="conv: where the mesh has axes")
    outputs: Literal["independent", "split-both", "split-branch", "split-trunk"] = Field(
        "independent",
        description="networks for each output, or shared ones that give p numbers for each",
    )
