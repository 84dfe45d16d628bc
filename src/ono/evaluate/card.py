"""What an operator on disk says about itself, and where to find it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from ono.data.info import Channel, Coords, Mesh, Task
from ono.data.layout import Role
from ono.data.sources import MeshFields, Sources
from ono.data.told_layouts import kept_layouts
from ono.data.view import View
from ono.errors import CheckpointError, nearest
from ono.evaluate.thinning import Thinning
from ono.files import sha256
from ono.models.registry import MODELS
from ono.problem import Problem

FORMAT = 1
WEIGHTS_FILE, CARD_FILE, MANIFEST = "model.safetensors", "model.json", "manifest.json"
CHECKPOINTS, BEST = "checkpoints", "best.json"


class Card(BaseModel, frozen=True, extra="forbid"):
    """What `model.json` says: enough to rebuild the network and to know what it means.

    `layouts` are the axes of imported outputs, and of other imported files that had them in another
    order than the store.
    """

    format: int = FORMAT
    model: str
    config: dict[str, Any]
    inputs: tuple[Channel, ...]
    params: tuple[Channel, ...] = ()
    outputs: tuple[Channel, ...]
    mesh: Mesh
    fields: MeshFields | None = None
    layouts: dict[Role, str] = {}
    task: Task = "steady"
    history: int = 0
    guess: Literal["none", "affine"] = "none"
    coords: Coords = "box"
    thin: int | None = Field(None, ge=2)
    times: tuple[float, ...] = ()
    resolution: tuple[int, ...] | None = None
    points: int | None = None
    weighted: bool = False
    seed: int
    dataset_sha256: str
    recipe_sha256: str
    version: str

    @classmethod
    def of(cls, view: View, *, model: str, config: BaseModel, **provenance: Any) -> Card:
        """Describe an operator for the data of a view."""
        info, sources = view.dataset.info, Sources.read(view.dataset.path)
        arrays = sources is None and info.provenance.maker == "import"
        return cls(
            model=model,
            config=config.model_dump(mode="json"),
            inputs=info.inputs,
            params=info.params,
            outputs=view.outputs,
            mesh=info.mesh,
            fields=None if sources is None else sources.fields,
            layouts=kept_layouts(info.provenance.settings) if arrays else {},
            task=info.task,
            history=0 if view.window is None else view.window.history,
            times=() if view.times is None else tuple(map(float, view.times)),
            resolution=view.shape,
            points=view.points if view.dataset.offsets is None else None,
            weighted="weights" in info.files,
            dataset_sha256=view.dataset.sha256,
            **provenance,
        )

    @property
    def bare(self) -> bool:
        """Whether the outputs are known to have come without an axis of channels."""
        return "c" not in self.layouts.get("outputs", "c")

    def problem(self) -> Problem:
        """Return what the network is built for."""
        outputs, thinning = len(self.outputs), self.thinning()
        shape, points = self.resolution, self.points
        if thinning is not None:
            points = None if points is None else thinning.points(points, self.mesh.dim)
            if shape is not None:
                shape = thinning.shape(shape)
                points = math.prod(shape)
        return Problem(
            dim=self.mesh.dim,
            in_channels=len(self.inputs) + len(self.params) + self.history * outputs,
            out_channels=outputs,
            timed=self.task == "timed",
            kind=self.mesh.kind,
            shape=shape,
            points=points,
        )

    def thinning(self) -> Thinning | None:
        """Return which points the network sees, unless it sees all."""
        return None if self.thin is None else Thinning(self.thin, self.mesh.periodic)


def find_operator(path: Path) -> Path:
    """Return the directory that holds `model.safetensors`, given it, a checkpoint or a run."""
    if (path / WEIGHTS_FILE).is_file():
        return path
    if (chosen := best_checkpoint(path / CHECKPOINTS)) is not None:
        return chosen
    saved = sorted((path / CHECKPOINTS).glob(f"step-*/{MANIFEST}"))
    if saved:
        return saved[-1].parent
    raise CheckpointError(
        f"no trained operator at {path}: expected {WEIGHTS_FILE}, or a run directory with "
        "checkpoints; train one with `ono train`"
    )


def best_checkpoint(directory: Path) -> Path | None:
    """Return the checkpoint with the lowest validation error, if one was marked."""
    try:
        name = json.loads((directory / BEST).read_text(encoding="utf-8"))["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    chosen = directory / Path(str(name)).name
    return chosen if (chosen / MANIFEST).is_file() else None


def read_card(path: Path) -> Card:
    """Read `model.json`, refusing formats and models this version does not know."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise CheckpointError(
                f"{path} has format {found!r}, this version of ono reads format {FORMAT}; use the "
                "version of ono that wrote it"
            )
        card = Card.model_validate(content)
    except (OSError, ValueError) as error:
        kind = "is not valid" if isinstance(error, ValidationError) else "cannot be read"
        raise CheckpointError(f"{path} {kind}: {first_line(error)}") from None
    if card.model not in MODELS:
        raise CheckpointError(
            f"{path} names the model {card.model!r}, which this version does not have; "
            f"{nearest(card.model, MODELS)}"
        )
    try:
        MODELS[card.model].config.model_validate(card.config)
    except ValidationError as error:
        reason = " ".join(str(error).split("[type")[0].split())
        raise CheckpointError(f"{path} is not valid: {reason}") from None
    return card


def refuse_damaged(directory: Path) -> None:
    """Compare the files with the manifest that a checkpoint has; an exported operator has none."""
    if not (directory / MANIFEST).is_file():
        if _is_of_a_run(directory):
            raise CheckpointError(
                f"{directory} has no {MANIFEST}: not a complete checkpoint; use another checkpoint "
                "of the run"
            )
        return
    try:
        files = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["files"]
        expected = {name: str(files[name]["sha256"]) for name in (WEIGHTS_FILE, CARD_FILE)}
        actual = {name: sha256(directory / name) for name in expected}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{directory / MANIFEST} cannot be read: {error!r}") from None
    for name, digest in expected.items():
        if actual[name] != digest:
            raise CheckpointError(
                f"{directory / name} is damaged: expected sha256 {digest}, got {actual[name]}; "
                "use another checkpoint of the run"
            )


def _is_of_a_run(directory: Path) -> bool:
    place = directory.resolve()
    return place.parent.name == CHECKPOINTS and place.name.startswith("step-")


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().splitlines()[0]
