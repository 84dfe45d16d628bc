"""A trained operator as one thing: network, normaliser, and what it was trained on.

On disk it is two files, `model.safetensors` and `model.json`; nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ono.data.batches import Source, in_order
from ono.data.info import Channel, Info, Mesh
from ono.data.normalise import Normaliser
from ono.domain import Domain
from ono.errors import CheckpointError, nearest
from ono.evaluate.calibrate import Calibrated, calibrate
from ono.files import replacing, write_text
from ono.models.registry import MODELS, build

FORMAT = 1
WEIGHTS_FILE, CARD_FILE = "model.safetensors", "model.json"


class Card(BaseModel, frozen=True, extra="forbid"):
    """What `model.json` says: enough to rebuild the network and to know what it means."""

    format: int = FORMAT
    model: str
    config: dict[str, Any]
    inputs: tuple[Channel, ...]
    outputs: tuple[Channel, ...]
    mesh: Mesh
    resolution: tuple[int, ...] | None = None
    seed: int
    dataset_sha256: str
    recipe_sha256: str
    version: str

    @classmethod
    def of(
        cls, info: Info, *, model: str, config: BaseModel, **provenance: Any
    ) -> Card:
        """Describe an operator for a dataset."""
        return cls(
            model=model,
            config=config.model_dump(mode="json"),
            inputs=(*info.inputs, *info.params),
            outputs=info.outputs,
            mesh=info.mesh,
            **provenance,
        )


class Operator(nn.Module):
    """Physical values in, physical values out.

    Call it like a model: `operator(domain, values, query=..., time=...)`.
    """

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card
        sizes = {
            "dim": card.mesh.dim,
            "in_channels": len(card.inputs),
            "out_channels": len(card.outputs),
        }
        self.model = build(MODELS[card.model].config.model_validate(card.config), **sizes)
        self.normaliser = Normaliser(**sizes)

    def forward(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        query: Domain | None = None,
        time: Tensor | None = None,
    ) -> Float[Tensor, "batch ... channels"]:
        """Return the output function in physical units."""
        place = self.normaliser.place
        output = self.model(
            place(domain),
            self.normaliser.encode(values),
            query=None if query is None else place(query),
            time=time,
        )
        return self.normaliser.decode(output)

    def calibrate(self, source: Source, batch: int = 32) -> None:
        """Compute the statistics inside the network exactly over training data."""

        def scaled() -> Iterator[tuple[Domain, Tensor]]:
            for part in in_order(source, batch):
                yield self.normaliser.place(part.domain), self.normaliser.encode(part.values)

        if isinstance(self.model, Calibrated):
            calibrate(self.model, scaled())

    def save(self, directory: Path) -> None:
        """Write the two files of this operator."""
        directory.mkdir(parents=True, exist_ok=True)
        # Tensors are copied: safetensors refuses views that share memory.
        state = {name: t.detach().cpu().contiguous().clone() for name, t in self.state_dict().items()}
        with replacing(directory / WEIGHTS_FILE) as aside:
            save_file(state, aside)
        write_text(directory / CARD_FILE, self.card.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path | str, device: torch.device | str = "cpu") -> Self:
        """Read an operator from its directory, a checkpoint, or a run (its best checkpoint)."""
        directory = find_operator(Path(path))
        operator = cls(read_card(directory / CARD_FILE))
        try:
            state = load_file(directory / WEIGHTS_FILE)
            operator.load_state_dict(state)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise CheckpointError(
                f"{directory / WEIGHTS_FILE} cannot be loaded: {_first_line(error)}; use another "
                "checkpoint of the run or train again"
            ) from None
        return operator.eval().to(device)


def find_operator(path: Path) -> Path:
    """Return the directory that holds `model.safetensors`, given it, a checkpoint or a run."""
    if (path / WEIGHTS_FILE).is_file():
        return path
    pointer = path / "checkpoints" / "best.json"
    if pointer.is_file():
        chosen = path / "checkpoints" / str(json.loads(pointer.read_text())["checkpoint"])
        if (chosen / WEIGHTS_FILE).is_file():
            return chosen
    saved = sorted((path / "checkpoints").glob(f"step-*/{WEIGHTS_FILE}"))
    if saved:
        return saved[-1].parent
    raise CheckpointError(
        f"no trained operator at {path}: expected {WEIGHTS_FILE}, or a run directory with "
        "checkpoints; train one with `ono train`"
    )


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
        raise CheckpointError(f"{path} {kind}: {_first_line(error)}") from None
    if card.model not in MODELS:
        raise CheckpointError(
            f"{path} names the model {card.model!r}, which this version does not have; "
            f"{nearest(card.model, MODELS)}"
        )
    return card


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
