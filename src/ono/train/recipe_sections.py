"""The sections of a recipe: data, roll-out, optimiser, training and model (no torch here)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from ono.data.info import Coords
from ono.errors import nearest
from ono.models.registry import MODELS
from ono.train.schedule import learning_rate


class DataRecipe(BaseModel, frozen=True, extra="forbid"):
    """Which data, how much of it, at which resolution."""

    path: str = Field(description="dataset directory, as `ono data make` wrote it")
    resolution: int | None = Field(
        None, gt=1, description="nodes along the first axis of the grid; all if not given"
    )
    train: int | None = Field(None, gt=0, description="training samples; all if not given")
    validation: int | None = Field(
        None, gt=0, description="samples that choose the checkpoint; all if not given"
    )
    test: int | None = Field(None, gt=0, description="samples of the report; all if not given")
    outputs: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of the outputs to learn; all if not given"
    )
    coords: Coords = Field(
        "box",
        description="box: from 0 to 1; standard: mean 0 and deviation 1; spread: by rank, for "
        "meshes whose points crowd somewhere",
    )
    guess: Literal["none", "affine"] = Field(
        "none", description="affine: learn what an affine fit of inputs, place and time leaves"
    )
    thin: int | None = Field(
        None,
        ge=2,
        description="the network sees every n-th node of an axis, one of n^dim points of a cloud; "
        "answers are carried to all. Less memory, more error",
    )
    memory: Literal["auto", "resident", "streamed"] = Field(
        "auto", description="all samples on the device, or read while it works"
    )


class RolloutRecipe(BaseModel, frozen=True, extra="forbid"):
    """How a series of frames is learned."""

    history: int | None = Field(None, gt=0, description="known frames; half of them if not given")
    train_steps: int | None = Field(
        None, gt=0, description="frames trained on after those; all if not given"
    )
    forcing: Literal["teacher", "free"] = Field(
        "teacher", description="steps in training start from true frames, or from predicted ones"
    )


class OptimiserRecipe(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """AdamW and its learning rate."""

    learning_rate: float = Field(
        1e-3,
        gt=0,
        le=1e38,
        description="at its peak",  # a float32
    )
    weight_decay: float = Field(1e-5, ge=0, description="of AdamW, not scaled by gradients")
    schedule: Literal["onecycle", "cosine", "constant"] = Field(
        "onecycle", description="how the rate goes up to its peak and down"
    )
    warmup: float = Field(0.3, ge=0, lt=1, description="share of the steps before the peak")
    start_factor: float = Field(25.0, ge=1, description="peak over first rate")
    final_factor: float = Field(1e4, ge=1, description="first over last rate")
    clip: float | None = Field(1.0, ge=1e-30, le=1e30, description="largest norm of the gradient")

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step."""
        return learning_rate(
            step,
            steps,
            self.learning_rate,
            kind=self.schedule,
            warmup=self.warmup,
            start_factor=self.start_factor,
            final_factor=self.final_factor,
        )


class TrainRecipe(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How long, in which steps, and what to keep."""

    epochs: int = Field(500, gt=0, description="passes over the training samples")
    batch: int = Field(4, gt=0, description="samples of a step")
    loss: Literal["fields", "channels"] = Field(
        "fields", description="one norm over all outputs, or the mean of one for each"
    )
    gradient_loss: float = Field(0.0, ge=0, description="weight of the H1 term, on grids")
    times: int | None = Field(
        None, gt=0, description="timed tasks: random times a step; all if not given"
    )
    weight_average: float = Field(0.0, ge=0, lt=1, description="decay of averaged weights; 0: off")
    validate_every: int = Field(1, gt=0, description="epochs between validations")
    checkpoint_minutes: float = Field(5.0, gt=0, description="between saves within an epoch")
    keep: int = Field(2, ge=2, description="latest checkpoints kept beside the best")
    nonfinite: str = Field("stop", description='"stop", or "skip:n" to tolerate n bad steps')
    device: str = Field("auto", description="auto, cpu or cuda")
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "tf32", description="of products on a GPU; sums, moments and loss stay in float32 or better"
    )
    execution: Literal["auto", "eager", "compiled", "captured"] = Field(
        "auto", description="how steps are run; captured: one CUDA graph, if the data fits the GPU"
    )
    kernels: Literal["auto", "plain", "fused"] = Field(
        "auto", description="fused: the blocks of ono as a few GPU kernels each, where they apply"
    )
    streams: bool = Field(
        True, description="fused kernels: both flows and the weight gradients at the same time"
    )
    compile: bool | None = Field(
        None, description="fuse operations with torch.compile; if not given, in long GPU runs"
    )
    recompute: bool = Field(
        False, description="keep the inputs of blocks only: less memory, a third more time"
    )
    micro_batch: int | None = Field(
        None, gt=0, description="samples of a batch at a time, gradients added; all if not given"
    )
    tensorboard: bool = Field(False, description="write curves for TensorBoard into the run")

    @field_validator("nonfinite")
    @classmethod
    def _nonfinite(cls, text: str) -> str:
        if text != "stop" and not re.fullmatch(r"skip:[1-9]\d*", text):
            raise ValueError('expected "stop" or "skip:n" with n of at least 1')
        return text

    @field_validator("device")
    @classmethod
    def _device(cls, text: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
            raise ValueError("expected auto, cpu, cuda or cuda:n")
        return text

    @property
    def skips(self) -> int:
        """How many non-finite steps are tolerated."""
        return 0 if self.nonfinite == "stop" else int(self.nonfinite.partition(":")[2])


class ModelRecipe(BaseModel, frozen=True, extra="forbid"):
    """Which operator, from which preset, with which options changed."""

    name: str = "ono"
    preset: str = "default"
    options: dict[str, Any] = {}

    @property
    def config(self) -> BaseModel:
        """The complete, validated configuration of the operator."""
        entry = MODELS[self.name]
        start = entry.presets[self.preset]().model_dump()
        return entry.config.model_validate(_merge(start, self.options))

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any) -> Any:
        """Take every key beside name and preset as an option of the operator."""
        if not isinstance(given, Mapping) or "options" in given:
            return given
        options = {k: v for k, v in given.items() if k not in ("name", "preset")}
        return {k: v for k, v in given.items() if k not in options} | {"options": options}

    @field_validator("name")
    @classmethod
    def _known_model(cls, name: str) -> str:
        if name not in MODELS:
            raise ValueError(f"no such model; {nearest(name, MODELS)}")
        return name

    @model_validator(mode="after")
    def _known_preset(self) -> ModelRecipe:
        presets = MODELS[self.name].presets
        if self.preset not in presets:
            raise ValueError(f"no preset {self.preset!r}; {nearest(self.preset, presets)}")
        return self


def _merge(start: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(start)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            value = _merge(old, value)
        merged[key] = value
    return merged
