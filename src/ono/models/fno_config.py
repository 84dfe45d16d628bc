"""The options of FNO (no torch)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

Count = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0)]


class FNOConfig(BaseModel, frozen=True, extra="forbid"):
    """The Fourier Neural Operator. Defaults are the published settings for Darcy flow.

    >>> FNOConfig(modes=(12, 12, 8)).width
    32
    """

    width: int = Field(32, gt=0, description="channels of the Fourier layers")
    layers: int = Field(4, gt=0, description="blocks, one after the other")
    modes: Count | tuple[Count, ...] = Field(
        12, description="wave numbers kept, for all axes or one an axis; time is the last axis"
    )
    padding: Share | tuple[Share, ...] = Field(
        0.119,
        description="empty stretch after each axis as a share of its length; 0 if periodic",
    )
    head: int = Field(128, gt=0, description="hidden width of the projection")
