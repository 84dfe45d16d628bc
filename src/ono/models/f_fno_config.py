"""The options of F-FNO (no torch)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Count = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0)]


class FFNOConfig(BaseModel, frozen=True, extra="forbid"):
    """The Factorised Fourier Neural Operator, with four layers as in most comparisons.

    >>> FFNOConfig().layers, FFNOConfig.deep().layers
    (4, 24)
    """

    width: int = Field(64, gt=0, description="channels of the Fourier layers")
    layers: int = Field(4, gt=0, description="on clouds one less, and one in the end")
    modes: Count | tuple[Count, ...] = Field(
        16, description="wave numbers kept, for all axes or one an axis; time is the last axis"
    )
    ffn_factor: int = Field(4, gt=0, description="hidden width of the FFNs over width")
    shared: bool = Field(False, description="one set of Fourier weights for all layers")
    padding: Share | tuple[Share, ...] = Field(
        0.107,
        description="meshes: empty stretch after each axis as a share of its length; 0 if periodic",
    )
    position: Literal["mesh", "logical"] = Field(
        "mesh", description="structured: coordinates and logical place, or the latter only"
    )
    latent: int = Field(64, gt=1, description="clouds: nodes along each axis of the latent grid")
    deformation: int = Field(64, ge=4, description="clouds: width of the deformation network")
    head: int = Field(128, gt=0, description="hidden width of the projection")

    @classmethod
    def deep(cls) -> FFNOConfig:
        """Return the 24 layers with which the publication has its best results."""
        return cls(layers=24)
