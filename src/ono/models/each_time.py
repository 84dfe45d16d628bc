"""Several times of one input, for models that see one time at a call."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain


def each_time(
    model: nn.Module,
    domain: Domain,
    values: Float[Tensor, "batch points channels"],
    query: Domain | None,
    time: Float[Tensor, "batch time"],
) -> Float[Tensor, "batch time ... out"]:
    """Call a model with every time as a sample of its own."""
    count = time.shape[1]
    output: Tensor = model(
        domain.repeat(count),
        values.repeat_interleave(count, 0),
        query=None if query is None else query.repeat(count),
        time=time.flatten(),
    )
    parts: Tensor = output.unflatten(0, (-1, count))
    return parts
