"""Every n-th node of a grid or structured mesh, and linear interpolation back to all of them.

Axis by axis and by slices alone: nothing here waits for a device, and kept nodes keep their value
to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ono.domain import Domain
from ono.errors import UnsupportedDomain
from ono.nn.interpolation import interpolate
from ono.nn.local_planes import times_as_channels


@dataclass(frozen=True, slots=True)
class Axis:
    """Every `every`-th of some nodes in a row.

    The first node is kept, and where nothing follows it the last one too, after a shorter step if
    need be. On a periodic axis the first node follows the last.

    >>> Axis(9, 3).kept, Axis(9, 4, periodic=True).kept
    ((0, 3, 6, 8), (0, 4, 8))
    """

    nodes: int
    every: int
    periodic: bool = False

    @property
    def kept(self) -> tuple[int, ...]:
        """Which nodes are kept."""
        places = range(0, self.nodes, self.every)
        ends = self.periodic or places[-1] == self.nodes - 1
        return tuple(places) if ends else (*places, self.nodes - 1)

    def pick(self, x: Float[Tensor, "... nodes"]) -> Float[Tensor, "... kept"]:
        """Return the values at the kept nodes."""
        some = x[..., :: self.every]
        return some if some.shape[-1] == len(self.kept) else torch.cat((some, x[..., -1:]), -1)

    def carry(self, x: Float[Tensor, "... kept"]) -> Float[Tensor, "... nodes"]:
        """Return values at all nodes, linear between the kept ones.

        >>> Axis(4, 2).carry(torch.tensor([0.0, 2.0, 3.0])).tolist()
        [0.0, 1.0, 2.0, 3.0]
        """
        ends = torch.cat((x, x[..., :1]), -1) if self.periodic else x
        between = torch.lerp(ends[..., :-1, None], ends[..., 1:, None], self._shares(x))
        if self.periodic:
            return between.flatten(-2)[..., : self.nodes]
        return torch.cat((between.flatten(-2)[..., : self.nodes - 1], x[..., -1:]), -1)

    def gather(self, weights: Float[Tensor, "... nodes"]) -> Float[Tensor, "... kept"]:
        """Give every node's weight to the kept nodes it is interpolated from.

        So the integral of what is carried stays the same; the trapezoidal rule becomes that of the
        kept nodes.

        >>> Axis(5, 2).gather(torch.tensor([0.125, 0.25, 0.25, 0.25, 0.125])).tolist()
        [0.25, 0.5, 0.25]
        """
        inner = weights if self.periodic else weights[..., :-1]
        shares = self._shares(weights)
        inner = torch.nn.functional.pad(inner, (0, shares.numel() - inner.shape[-1]))
        inner = inner.unflatten(-1, shares.shape)
        below: Tensor = (inner * (1 - shares)).sum(-1)
        above: Tensor = (inner * shares).sum(-1)
        if self.periodic:
            return below + above.roll(1, -1)
        last = weights[..., -1:]
        return torch.cat((below, last), -1) + torch.cat((torch.zeros_like(last), above), -1)

    def _shares(self, like: Tensor) -> Float[Tensor, "steps every"]:
        """Return how far each node is on the way from one kept node to the next."""
        kept = (*self.kept, self.nodes) if self.periodic else self.kept
        steps = torch.arange(self.every, device=like.device, dtype=like.dtype)
        if len(kept) == 1:
            return steps.new_zeros(0, self.every)
        last = kept[-1] - kept[-2]
        # Behind a shorter last step there are no nodes; what stands there is cut off.
        even = (steps / self.every).expand(len(kept) - 2, -1)
        return torch.cat((even, steps[None] / last))


def thin_shape(shape: tuple[int, ...], every: int, *, periodic: bool) -> tuple[int, ...]:
    """Return how many nodes are kept along each axis of a mesh.

    >>> thin_shape((85, 64), 2, periodic=False), thin_shape((64, 64), 2, periodic=True)
    ((43, 33), (32, 32))
    """
    return tuple(len(Axis(nodes, every, periodic).kept) for nodes in shape)


class ThinMesh:
    """Some nodes of a mesh; the way back is linear in the logical coordinates of the mesh."""

    def __init__(self, whole: Domain, every: int, *, periodic: bool) -> None:
        if whole.shape is None or whole.mask is not None:
            raise UnsupportedDomain(
                "an operator that thins its points needs all nodes of a mesh, got one with nodes "
                "masked out; give those that are there as scattered points, without a shape"
            )
        self.whole, self.shape = whole, whole.shape
        self.axes = [Axis(nodes, every, periodic) for nodes in whole.shape]
        weights = whole.weights
        if weights is not None:
            gather = [axis.gather for axis in self.axes]
            weights = _along(whole.shape, gather, weights[..., None])[..., 0]
        shape = thin_shape(whole.shape, every, periodic=periodic)
        even = all(nodes % every == 0 for nodes in whole.shape)
        self.domain = Domain(
            self.pick(whole.coords), shape, weights, periodic=whole.periodic and even
        )

    def pick(
        self, values: Float[Tensor, "batch points channels"]
    ) -> Float[Tensor, "batch kept channels"]:
        """Return the values at the kept nodes."""
        return _along(self.shape, [axis.pick for axis in self.axes], values)

    def carry(
        self, output: Float[Tensor, "batch ... kept out"], query: Domain | None = None
    ) -> Float[Tensor, "batch ... points out"]:
        """Return what is known at the kept nodes at all of them, and from there at any points.

        So a query at a node gets the value of the node.
        """
        assert self.domain.shape is not None
        everywhere = _along(self.domain.shape, [axis.carry for axis in self.axes], output)
        if query is None:
            return everywhere
        at = partial(interpolate, self.whole, query=query, method="linear")
        return times_as_channels(at, everywhere)


def _along(
    shape: tuple[int, ...], changes: Sequence[Callable[[Tensor], Tensor]], x: Tensor
) -> Tensor:
    """Apply a change to each axis of values [... points channels] on a mesh."""
    mesh = x.unflatten(-2, shape)
    for place, change in enumerate(changes, -1 - len(shape)):
        mesh = change(mesh.movedim(place, -1)).movedim(-1, place)
    flat: Tensor = mesh.flatten(-1 - len(shape), -2)
    return flat
