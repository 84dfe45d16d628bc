"""The options of ONO and its presets (no torch, so that recipes are checked quickly)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, model_validator

from ono.nn.eigen_options import EigenOptions


class LowerOptions(BaseModel, frozen=True, extra="forbid"):
    """The attention of the NN blocks, which learn the eigenfunctions."""

    attention: Literal["efficient", "linear", "nystrom", "galerkin", "softmax"] = Field(
        "efficient", description="how points see each other; softmax alone has quadratic cost"
    )
    heads: int = Field(8, gt=0, description="of the attention")
    width: int | None = Field(None, gt=0, description="channels of g; as many as of h if not given")
    layers: int | None = Field(
        None,
        gt=0,
        description="NN blocks, each for several layers if fewer; one for each if not given",
    )
    landmarks: int = Field(64, gt=0, description="nystrom: how many; 256 as published")
    pinv_iterations: int = Field(6, gt=0, description="nystrom: steps of the pseudo-inverse")
    index_convolution: bool = Field(False, description="nystrom: 33 taps along the point index")


class TimeOptions(BaseModel, frozen=True, extra="forbid"):
    """Where a time enters and how fast its features turn."""

    to: Literal["g", "h"] = Field("h", description="h lets one lower flow serve all times")
    scale: float = Field(100.0, gt=0, description="multiplies times in [0, 1]")


class ONOConfig(BaseModel, frozen=True, extra="forbid"):
    """The Orthogonal Neural Operator. Defaults are the best we know; `paper` is the publication.

    >>> ONOConfig(width=64, layers=4).eigen.functions
    16
    >>> ONOConfig.paper("text").eigen.covariance
    'ema'
    """

    width: int = Field(128, gt=0, description="d, channels of both flows")
    layers: int = Field(8, gt=0, description="blocks, one after the other")
    ffn_ratio: float = Field(1.0, gt=0, description="hidden width of the FFNs over width")
    lower: LowerOptions = LowerOptions()
    eigen: EigenOptions = EigenOptions()
    block: Literal["pre", "post"] = Field("pre", description="norm before, or Eq. 6 as printed")
    encoder: Literal["separate", "shared"] = Field(
        "separate", description="one network for each flow, or one for both"
    )
    head: Literal["linear", "ffn"] = Field("linear", description="what makes outputs of h")
    position: Literal["coords", "mesh", "index"] = Field(
        "coords", description="mesh: also the place in the logical mesh; index: node number only"
    )
    octaves: int = Field(
        4, ge=0, le=16, description="sines and cosines of the place, from half a wave a unit on"
    )
    surroundings: int = Field(
        0, ge=0, description="grids: channels of a convolutional network that tells what is near"
    )
    query: Literal["linear", "nearest", "cross"] = Field(
        "linear", description="how inputs reach query points; cross: they do not (Eq. 20)"
    )
    time: TimeOptions = TimeOptions()

    @model_validator(mode="after")
    def _no_idle_blocks(self) -> ONOConfig:
        if self.lower.layers is not None and self.lower.layers > self.layers:
            raise ValueError(
                f"lower.layers must not exceed layers, got {self.lower.layers} and {self.layers}"
            )
        return self

    def lower_moves(self) -> list[bool]:
        """Say for each layer whether an NN block moves g before it.

        >>> ONOConfig(layers=5, lower=LowerOptions(layers=2)).lower_moves()
        [True, False, False, True, False]
        """
        blocks = self.lower.layers or self.layers
        owner = [layer * blocks // self.layers for layer in range(self.layers)]
        return [layer == 0 or owner[layer] > owner[layer - 1] for layer in range(self.layers)]

    @classmethod
    def paper(cls, reading: Literal["released", "text"] = "released") -> ONOConfig:
        """Return the published model, as the released code has it or as the text prints it."""
        text = reading == "text"
        return cls(
            lower=LowerOptions(attention="linear" if text else "efficient", landmarks=256),
            eigen=EigenOptions(
                heads=1,
                covariance="ema" if text else "batch",
                measure="sum",
                value_projection=text,
                bias=not text,
                momentum=0.9,
                ridge=1e-6,
            ),
            block="post",
            encoder="separate" if text else "shared",
            head="ffn" if text else "linear",
            octaves=0,
            time=TimeOptions(to="g", scale=1.0),
        )
