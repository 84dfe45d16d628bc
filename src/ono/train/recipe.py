"""A recipe: one YAML file that says everything about a training run (no torch here).

Unknown keys are refused with the nearest match, overrides are `key=value`, and the resolved
recipe is written into the run.
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from ono.data.store import INFO_FILE
from ono.errors import RecipeError, nearest
from ono.models.registry import MODELS
from ono.train.derive import derive
from ono.train.schedule import learning_rate


class DataRecipe(BaseModel, frozen=True, extra="forbid"):
    """Which data, how much of it, at which resolution."""

    path: str = Field(description="dataset directory, as `ono data make` wrote it")
    resolution: int | None = Field(
        None, gt=1, description="nodes along the first axis of the grid; all if not given"
    )
    train: int | None = Field(None, gt=0, description="training samples; all if not given")
    validation: int | None = Field(None, gt=0)
    test: int | None = Field(None, gt=0)
    outputs: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of the outputs to learn; all if not given"
    )
    coords: Literal["box", "spread"] = Field(
        "box", description="spread: by rank, for meshes whose points crowd somewhere"
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
    memory: Literal["auto", "resident", "streamed"] = "auto"


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

    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(1e-5, ge=0)
    schedule: Literal["onecycle", "cosine", "constant"] = "onecycle"
    warmup: float = Field(0.3, ge=0, lt=1, description="share of the steps before the peak")
    start_factor: float = Field(25.0, ge=1)
    final_factor: float = Field(1e4, ge=1)
    clip: float | None = Field(1.0, gt=0, description="largest norm of the gradient")

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

    epochs: int = Field(500, gt=0)
    batch: int = Field(4, gt=0)
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
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    execution: Literal["auto", "eager", "compiled", "captured"] = Field(
        "auto", description="how steps are run; captured: one CUDA graph, if the data fits the GPU"
    )
    kernels: Literal["auto", "plain", "fused"] = Field(
        "auto", description="fused: the blocks of ono as a few GPU kernels each, where they apply"
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
    tensorboard: bool = False

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


class Recipe(BaseModel, frozen=True, extra="forbid"):
    """Everything that decides a training run."""

    name: str = "own"
    seed: int = Field(0, ge=0)
    data: DataRecipe
    rollout: RolloutRecipe | None = None
    model: ModelRecipe = ModelRecipe()
    optimiser: OptimiserRecipe = OptimiserRecipe()
    train: TrainRecipe = TrainRecipe()

    @classmethod
    def load(
        cls, source: str | Path, overrides: Iterable[str] = (), *, small: bool = False
    ) -> Recipe:
        """Read a packaged recipe by name ("darcy/ono") or a YAML file, and change some values.

        From a dataset directory a recipe is derived; a `small` one suits a CPU.
        """
        is_data = is_dataset(source)
        content = derive(source, small=small) if is_data else read_yaml(_find(source))
        for override in overrides:
            _override(content, override)
        return cls.from_mapping(content)

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any]) -> Recipe:
        """Validate a recipe; a mistake becomes one clear RecipeError."""
        try:
            recipe = cls.model_validate(content)
        except ValidationError as error:
            raise RecipeError(_explain(error, cls)) from None
        try:
            recipe.model.config  # noqa: B018
        except ValidationError as error:
            raise RecipeError(_explain(error, MODELS[recipe.model.name].config, "model")) from None
        return recipe

    @property
    def forcing(self) -> Literal["teacher", "free"]:
        """Where the steps of a roll-out start in training."""
        return "teacher" if self.rollout is None else self.rollout.forcing

    def resolved(self) -> dict[str, Any]:
        """Return the recipe with every option of the operator written out."""
        content = self.model_dump(mode="json")
        config = self.model.config.model_dump(mode="json")
        content["model"] = {"name": self.model.name, "preset": self.model.preset, **config}
        return content

    def to_yaml(self) -> str:
        """Return the resolved recipe as YAML."""
        return yaml.safe_dump(self.resolved(), sort_keys=False)

    @property
    def sha256(self) -> str:
        """The hash of the resolved recipe."""
        text = json.dumps(self.resolved(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


class _StrictLoader(yaml.SafeLoader):
    """YAML without tags that build objects, without duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if not isinstance(key, str):
                raise yaml.YAMLError(f"the key {key!r} is not text")
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"the key {key!r} is given twice")
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1e-3 as text; people mean the number.
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def read_yaml(path: Path | Traversable) -> dict[str, Any]:
    """Read a YAML mapping; tags, duplicate keys and anything else are refused."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise RecipeError(
            f"recipe {path} is not valid YAML: {' '.join(str(error).split())}"
        ) from None
    except RecursionError:
        raise RecipeError(f"recipe {path} is nested too deeply") from None
    if not isinstance(content, dict):
        raise RecipeError(f"recipe {path} must be a mapping of keys, got {type(content).__name__}")
    return content


def is_dataset(source: str | Path) -> bool:
    """Say whether a recipe is to be derived: the source is a directory that holds data."""
    path = Path(source)
    return (path / INFO_FILE).is_file() or (path.is_dir() and str(source) not in packaged_recipes())


def packaged_recipes() -> list[str]:
    """Return the names of the recipes that come with ono."""
    root = files("ono") / "recipes"
    return sorted(
        f"{folder.name}/{file.name.removesuffix('.yaml')}"
        for folder in root.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    )


def _find(source: str | Path) -> Path | Traversable:
    if (path := Path(source)).is_file():
        return path
    packaged = packaged_recipes()
    if str(source) in packaged:
        return files("ono") / "recipes" / f"{source}.yaml"
    if path.suffix in (".yaml", ".yml"):
        raise RecipeError(f"no recipe file {source}; packaged recipes: {', '.join(packaged)}")
    raise RecipeError(f"no recipe {str(source)!r}; {nearest(str(source), packaged)}")


_TEXT = ("data.path",)
"""Overrides taken to the letter: a path may look like a number or hold a comment sign."""


def _override(content: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {text!r} must be key=value, such as train.epochs=10")
    try:
        parsed = value if key in _TEXT else yaml.load(value, _StrictLoader)
    except yaml.YAMLError:
        raise RecipeError(f"override {text!r}: the value is not valid YAML") from None
    *parents, last = key.split(".")
    place = content
    for parent in parents:
        place = place.setdefault(parent, {})
        if not isinstance(place, dict):
            raise RecipeError(f"override {text!r}: {parent} is a value, it has no fields")
    place[last] = parsed


def _merge(start: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(start)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            value = _merge(old, value)
        merged[key] = value
    return merged


# Aliases can make a value that is small in the file and endless in print.
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2


def _explain(error: ValidationError, schema: type[BaseModel], prefix: str = "") -> str:
    lines = []
    for fault in error.errors():
        parts = [str(part) for part in fault["loc"]]
        name = ".".join([prefix, *parts] if prefix else parts)
        given = _SHORT.repr(fault.get("input"))
        if fault["type"] == "extra_forbidden":
            known = _fields(schema, parts[:-1])
            where = ".".join([*([prefix] if prefix else []), *parts[:-1]])
            hint = nearest(parts[-1], known)
            if where and hint.startswith("did you mean "):
                hint = f"did you mean {where}.{hint.removeprefix('did you mean ')}"
            lines.append(f"recipe has no field {name} (given {given}); {hint}")
        elif fault["type"] == "missing":
            lines.append(f"recipe needs {name}, which is not given")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            message = message[0].lower() + message[1:]
            if fault["type"] == "literal_error":
                wrong = fault["input"] if isinstance(fault["input"], str) else ""
                choices = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
                message = f"expected one of {', '.join(choices)}; {nearest(wrong, choices)}"
            lines.append(f"recipe field {name} is {given}: {message}")
    return "\n".join(lines)


def _fields(schema: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        inner = schema.model_fields[part].annotation
        if get_origin(inner) is not None:
            inner = next((a for a in get_args(inner) if isinstance(a, type)), None)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        schema = inner
    if schema is ModelRecipe:
        return ["name", "preset"]
    return list(schema.model_fields)
