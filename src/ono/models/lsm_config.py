"""The options of LSM (no torch)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

Count = Annotated[int, Field(gt=0)]


class LSMConfig(BaseModel, frozen=True, extra="forbid"):
    """The Latent Spectral Model. Defaults are the published settings for Darcy flow.

    >>> LSMConfig(width=32).tokens
    4
    """

    width: int = Field(64, gt=0, description="channels of the finest scale")
    scales: int = Field(5, gt=0, description="a grid is one patch on the coarsest")
    basis: int = Field(12, gt=0, description="sines and cosines of the latent operator, each")
    tokens: int = Field(4, gt=0, description="latent tokens of a patch")
    heads: int = Field(8, gt=0, description="heads of the attention of tokens and nodes")
    norm: Literal["batch", "instance"] = Field(
        "batch", description="instance: samples do not see each other in training"
    )
    position: Literal["mesh", "logical"] = Field(
        "mesh", description="structured: coordinates and logical place, or the latter only"
    )
    modes: Count | tuple[Count, ...] = Field(
        12, description="clouds: wave numbers kept on the way to the latent grid and back"
    )
    latent: int = Field(96, gt=1, description="clouds: nodes along each axis of the latent grid")
    deformation: int = Field(32, ge=4, description="clouds: width of the deformation network")
    head: int = Field(128, gt=0, description="hidden width of the projection")

    @model_validator(mode="after")
    def _whole_heads(self) -> LSMConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads")
        return self
