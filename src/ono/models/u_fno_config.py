"""The options of U-FNO (no torch)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Count = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0)]


class UFNOConfig(BaseModel, frozen=True, extra="forbid"):
    """FNO with a U-Net path. Defaults are the settings of the comparison in the ONO paper.

    >>> UFNOConfig().unet_layers, UFNOConfig.published().unet_layers
    (1, 3)
    """

    width: int = Field(32, gt=0, description="channels of the Fourier layers")
    layers: int = Field(4, gt=0, description="on clouds one less, and one in each end")
    unet_layers: int = Field(1, ge=0, description="how many of the last layers have the path")
    norm: Literal["batch", "instance"] = Field("batch", description="in the path; as published")
    modes: Count | tuple[Count, ...] = Field(
        12, description="wave numbers kept, for all axes or one an axis; time is the last axis"
    )
    padding: Share | tuple[Share, ...] = Field(
        0.119,
        description="meshes: empty stretch after each axis as a share of its length; 0 if periodic",
    )
    position: Literal["mesh", "logical"] = Field(
        "mesh", description="structured: coordinates and logical place, or the latter only"
    )
    latent: int = Field(40, gt=1, description="clouds: nodes along each axis of the latent grid")
    deformation: int = Field(32, ge=4, description="clouds: width of the deformation network")
    head: int = Field(128, gt=0, description="hidden width of the projection")

    @classmethod
    def published(cls) -> UFNOConfig:
        """Return the original network: three Fourier layers, then three with the path."""
        return cls(width=36, layers=6, unet_layers=3, modes=10)
