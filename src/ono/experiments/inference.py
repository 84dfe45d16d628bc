"""How long an evaluation takes, from a thousand points to millions.

The operator is calibrated, so its covariances are folded into constants, and in evaluation mode.
Its weights are random: they do not matter for time. Inputs are noise on a mesh like that of the
data with more or fewer nodes, or on as many scattered points.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ono.data.batches import load
from ono.data.store import Dataset
from ono.device import choose_device, shortage
from ono.domain import Domain
from ono.errors import OutOfMemory
from ono.evaluate.operator import Operator
from ono.evaluate.recorded import Recorded
from ono.train.prepare import cut, new_operator
from ono.train.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Inference:
    """What a call of an operator costs; `chunk` is None where all points were taken at once.

    A recorded call is the replay of a CUDA graph, with the copy of its inputs and of its output.
    """

    recipe: str
    points: int
    batch: int
    chunk: int | None
    milliseconds: float
    calls: int
    peak_bytes: int | None
    form: Literal["eager", "recorded"] = "eager"

    @property
    def points_per_second(self) -> float:
        """How many points are evaluated in a second."""
        return 1000 * self.batch * self.points / self.milliseconds


def untrained(
    source: str, data: Path, overrides: Sequence[str] = (), *, device: str = "auto"
) -> tuple[str, Operator]:
    """Return the name and the calibrated operator of a recipe, with its first weights."""
    where = torch.device(choose_device(device))
    recipe = Recipe.load(source, [f"data.path={data}", "data.train=null", *overrides])
    view = cut(Dataset.open(data), recipe).train
    operator = new_operator(recipe, view).to(where)
    operator.calibrate(load(view, where), batch=4)
    return recipe.name, operator.eval()


def call_speed(
    name: str,
    operator: Operator,
    points: int,
    *,
    batch: int = 1,
    chunk: int | None = None,
    seconds: float = 2.0,
    recorded: bool = False,
) -> Inference:
    """Measure calls at about so many points: the median, without the first if there are more.

    Points are streamed where they are many, or if a `chunk` is given; what is kept of them between
    the layers stays on the device. A recorded call takes all at once.
    """
    device = operator.device
    domain, values, moment = noise(operator, points, batch)
    domain, values = domain.to(device), values.to(device)
    if chunk is None and operator.in_chunks(domain) and not recorded:
        chunk = operator.chunk
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    if recorded:
        answer = partial(Recorded(operator, domain, values, time=moment), domain, values)
    else:
        answer = partial(operator.field, domain, values, chunk=chunk)

    def call() -> float:
        began = time.perf_counter()
        try:
            answer(time=moment)
        except (RuntimeError, MemoryError) as error:
            if (reason := shortage(error)) is None:
                raise
            raise OutOfMemory(f"memory ran out: {reason}; give a chunk") from None
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    taken = [call()]
    while sum(taken) < seconds or (len(taken) < 4 and taken[0] < seconds):
        taken.append(call())
    return Inference(
        name,
        domain.points,
        batch,
        chunk,
        1000 * float(np.median(taken[1:] or taken)),
        len(taken),
        torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "recorded" if recorded else "eager",
    )


def noise(operator: Operator, points: int, batch: int) -> tuple[Domain, Tensor, Tensor | None]:
    """Return inputs for an operator at about so many points, and a time if it needs one."""
    card, scale = operator.card, operator.normaliser
    random = torch.Generator().manual_seed(0)
    low, span = scale.coord_low.cpu(), scale.coord_span.cpu()
    shape = _shape(card.mesh.shape, points) if card.mesh.shape is not None else None
    if shape is None or len(shape) != card.mesh.dim:
        domain = Domain(low + span * torch.rand(batch, points, card.mesh.dim, generator=random))
    else:
        even = Domain.grid(shape, batch=batch)
        weights = even.weights if card.mesh.kind == "grid" else None
        domain = Domain(low + span * even.coords, shape, weights)
    channels = card.problem().in_channels
    values = torch.randn(batch, domain.points, channels, generator=random)
    moment = scale.time_low.expand(batch) if card.task == "timed" else None
    return domain, values, moment


def _shape(shape: tuple[int, ...], points: int) -> tuple[int, ...]:
    """Return a mesh of the same proportions with about so many nodes."""
    factor = (points / math.prod(shape)) ** (1 / len(shape))
    return tuple(max(2, round(nodes * factor)) for nodes in shape)
