"""A trained operator as one thing: network, normaliser, and what it was trained on.

On disk it is two files, `model.safetensors` and `model.json`; nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from ono.data.batches import Source, in_order
from ono.data.guess import AffineGuess
from ono.data.normalise import Normaliser
from ono.data.store import Dataset
from ono.data.view import Batch
from ono.data.windows import windows
from ono.device import quick_products
from ono.domain import Domain
from ono.errors import CheckpointError, UnsupportedDomain
from ono.evaluate.calibrate import Calibrated, calibrate
from ono.evaluate.card import (
    CARD_FILE,
    WEIGHTS_FILE,
    Card,
    find_operator,
    first_line,
    read_card,
    refuse_damaged,
)
from ono.evaluate.rollout import roll_out
from ono.evaluate.shortage import halving
from ono.evaluate.thinning import Thinning
from ono.files import replacing, write_text
from ono.models.ono import ONO
from ono.models.ono_stream import can_stream, stream
from ono.models.registry import MODELS, build
from ono.nn.interpolation import interpolate
from ono.nn.measure import at_least_float32

CHUNK = {"cpu": 1 << 14, "cuda": 1 << 16}
"""Points at a time, where they are taken in chunks.

On a CPU tensors of more are too large for the C library to keep, and for its caches.
"""

_MANY = {"cpu": 1 << 15, "cuda": 1 << 18}
"""Points above which an operator that can take them in chunks does so."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


@runtime_checkable
class Queryable(Protocol):
    """A model that can summarise its input once and then be evaluated anywhere."""

    queries_are_independent: bool

    def encode(
        self, domain: Domain, values: Tensor, *, time: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Return the output at the input points, and what queries need."""

    def decode(
        self,
        seen: Any,
        domain: Domain,
        values: Tensor,
        query: Domain,
        *,
        time: Tensor | None = None,
    ) -> Tensor:
        """Return the output at query points."""


@runtime_checkable
class FitsInputs(Protocol):
    """A model with scales of its own, which it takes from the training data."""

    def fit_inputs(self, batches: Iterable[tuple[Domain, Tensor]]) -> None:
        """Take them from inputs as the model will see them."""


def _quickly(
    method: Callable[Concatenate[Operator, _P], _R],
) -> Callable[Concatenate[Operator, _P], _R]:
    """Make the products of a CPU quickly throughout a method."""

    @wraps(method)
    def quick(self: Operator, /, *args: _P.args, **options: _P.kwargs) -> _R:
        with quick_products(self.device):
            return method(self, *args, **options)

    return quick


class Operator(nn.Module):
    """Physical values in, physical values out.

    Call it like a model: `operator(domain, values, query=..., time=...)`. An operator for
    roll-outs makes one step when called; `answer` makes as many as a batch asks for.
    """

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card
        dim, outputs = card.mesh.dim, len(card.outputs)
        inputs = len(card.inputs) + len(card.params)
        config = MODELS[card.model].config.model_validate(card.config)
        self.model = build(config, card.problem())
        self.thinning: Thinning | None = card.thinning()
        self.normaliser = Normaliser(
            dim=dim,
            in_channels=inputs,
            out_channels=outputs,
            history=card.history,
            coords=card.coords,
        )
        self.guess: AffineGuess | None = None
        if card.guess == "affine":
            told = inputs + card.history * outputs
            self.guess = AffineGuess(dim=dim, in_channels=told, out_channels=outputs)

    def forward(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        query: Domain | None = None,
        time: Tensor | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return the output function in physical units."""
        scale = self.normaliser
        here, scaled = scale.place(domain), scale.encode(values)
        there = None if query is None else scale.place(query)
        clock = None if time is None else scale.clock(time)
        if self.thinning is None:
            output = self.model(here, scaled, query=there, time=clock)
        else:
            some = self.thinning(here)
            output = self.model(some.domain, some.pick(scaled), time=clock)
            output = some.carry(at_least_float32(output), there)
        return self._finish(output, here, scaled, there, clock)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.normaliser.coord_low.device

    @property
    def chunk(self) -> int:
        """How many points are taken at a time, where they are taken in chunks."""
        return CHUNK[self.device.type]

    def fit_scales(self, batches: Callable[[], Iterable[Batch]]) -> None:
        """Fit what is not learned by gradients: scales, and the guess if there is one."""
        self.normaliser.fit(batches())
        if self.guess is not None:
            self.guess.fit(self.normaliser, batches())
        if isinstance(self.model, FitsInputs):
            seen = (self._seen(batch) for batch in batches())
            self.model.fit_inputs((domain, values) for domain, values, _ in seen)

    def _finish(
        self,
        output: Tensor,
        here: Domain,
        scaled: Tensor,
        there: Domain | None,
        clock: Tensor | None,
    ) -> Tensor:
        """Return the network's output in physical units, added to the guess if there is one."""
        if self.guess is not None:
            if there is not None:
                scaled = interpolate(here, scaled, there, "linear")
            output = self.guess(output, there or here, scaled, clock)
        return self.normaliser.decode(output)

    def answer(self, batch: Batch) -> Float[Tensor, "batch ... out"]:
        """Predict what a batch asks for: a field, a field at each time, or a free roll-out."""
        if batch.history is not None:
            steps = batch.target.shape[1]
            return roll_out(self, batch.domain, batch.values, batch.history, steps)
        if batch.times is None:
            return self.forward(batch.domain, batch.values)
        time = batch.times.expand(batch.domain.batch, -1)
        return self.forward(batch.domain, batch.values, time=time)

    @_quickly
    @torch.no_grad()
    def stream(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        time: Tensor | None = None,
        chunk: int | None = None,
        keep: bool = True,
    ) -> Float[Tensor, "batch ... out"]:
        """Evaluate at the input points with memory for `chunk` of them, in one pass per layer.

        The operator must be calibrated and in evaluation mode. Between the passes about 1 kB a
        point is kept where the inputs lie, on the host or the device; without `keep` nothing is,
        and every pass starts from the inputs.
        """
        model, scale = self.model, self.normaliser
        if not isinstance(model, ONO):
            raise UnsupportedDomain(
                f"{self.card.model} needs all points at once; only ono can take them in chunks"
            )
        chunk = chunk or self.chunk
        device, home = self.device, domain.coords.device
        here, scaled = scale.place(domain.to(device)), scale.encode(values.to(device))
        clock = None if time is None else scale.clock(time.to(device))
        if self.thinning is None:
            placed = replace(domain, coords=here.coords.to(home))
            output = stream(model, placed, scaled.to(home), time=clock, chunk=chunk, keep=keep)
            return self._finish(output.to(device), here, scaled, None, clock).to(home)
        some = self.thinning(here)
        placed = some.domain.to(home)  # does not wait; the copy of the values does, behind it
        seen = some.pick(scaled).to(home)
        output = stream(model, placed, seen, time=clock, chunk=chunk, keep=keep)
        output = some.carry(at_least_float32(output.to(device)))
        return self._finish(output, here, scaled, None, clock).to(home)

    @_quickly
    @torch.no_grad()
    def field(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        time: Tensor | None = None,
        chunk: int | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Evaluate at the input points: in chunks if asked to or if they are many, else at once."""
        if chunk is None and not self.in_chunks(domain, time):
            return self.forward(domain, values, time=time)
        return self.stream(domain, values, time=time, chunk=chunk)

    def in_chunks(self, domain: Domain, time: Tensor | None = None) -> bool:
        """Say whether points are so many that `field` takes them in chunks by itself."""
        times = 1 if time is None or time.ndim == 1 else time.shape[1]
        points = domain.points if self.thinning is None else self.thinning.kept(domain)
        return domain.batch * points * times > _MANY[self.device.type] and can_stream(self.model)

    @_quickly
    @torch.no_grad()
    def at(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        query: Domain,
        *,
        time: Tensor | None = None,
        chunk: int | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Evaluate at any number of query points with memory for `chunk` of them.

        The inputs are encoded once. Queries do not influence each other, so the chunks change
        nothing; a model for which they do gets all of them at once. Between thinned points
        nothing is asked of the model.
        """
        if self.thinning is not None:
            return self.forward(domain, values, query=query, time=time)
        if not (isinstance(self.model, Queryable) and self.model.queries_are_independent):
            return self.forward(domain, values, query=query, time=time)
        clock = None if time is None else self.normaliser.clock(time)
        here, there = self.normaliser.place(domain), self.normaliser.place(query)
        scaled = self.normaliser.encode(values)
        _, seen = self.model.encode(here, scaled, time=clock)
        parts = []
        for coords in there.coords.split(chunk or self.chunk, 1):
            some = Domain(coords)
            output = self.model.decode(seen, here, scaled, some, time=clock)
            parts.append(self._finish(output, here, scaled, some, clock))
        return torch.cat(parts, -2)

    @_quickly
    def calibrate(self, source: Source, batch: int | None = None) -> None:
        """Compute the statistics inside the network exactly over training data.

        Of a roll-out every teacher-forced step counts, of a timed task every time.
        """
        model = self.model
        if not isinstance(model, Calibrated):
            return

        def one_pass(size: int) -> None:
            calibrate(model, map(self._seen, in_order(source, size)))

        halving(batch or source.many, one_pass)

    def _seen(self, batch: Batch) -> tuple[Domain, Tensor, Tensor | None]:
        """Return what the network sees of a batch: where, scaled values, and times."""
        place, encode = self.normaliser.place, self.normaliser.encode
        domain, values, clock = batch.domain, batch.values, None
        if batch.history is not None:
            domain, values, _ = windows(batch)
        elif batch.times is not None:
            clock = self.normaliser.clock(batch.times.expand(domain.batch, -1))
        here, scaled = place(domain), encode(values)
        if self.thinning is None:
            return here, scaled, clock
        some = self.thinning(here)
        return some.domain, some.pick(scaled), clock

    def refuse_other_data(self, dataset: Dataset) -> None:
        """Refuse a dataset that is not the one this operator was trained on."""
        if self.card.dataset_sha256 != dataset.sha256:
            raise CheckpointError(
                f"this operator was trained on other data than {dataset.path} now holds "
                f"({self.card.dataset_sha256[:12]} against {dataset.sha256[:12]}); restore that "
                "dataset, say where it is with --data, or start a new run"
            )

    def save(self, directory: Path) -> None:
        """Write the two files of this operator."""
        directory.mkdir(parents=True, exist_ok=True)
        # Tensors are copied: safetensors refuses views that share memory.
        state = {
            name: t.detach().cpu().contiguous().clone() for name, t in self.state_dict().items()
        }
        with replacing(directory / WEIGHTS_FILE) as aside:
            aside.write_bytes(to_bytes(state))
        write_text(directory / CARD_FILE, self.card.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path | str, device: torch.device | str = "cpu") -> Operator:
        """Read an operator from its directory, a checkpoint, or a run (its best checkpoint)."""
        directory = find_operator(Path(path))
        refuse_damaged(directory)
        card = read_card(directory / CARD_FILE)
        with torch.random.fork_rng(devices=[]):  # first weights are drawn, then overwritten
            operator = cls(card)
        try:
            state = load_file(directory / WEIGHTS_FILE)
            operator.load_state_dict(state)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise CheckpointError(
                f"{directory / WEIGHTS_FILE} cannot be loaded: {first_line(error)}; use another "
                "checkpoint of the run or train again"
            ) from None
        return operator.eval().to(device)
