"""From the nodes of a grid or structured mesh to the grid a trunk works on, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import ShapeError, UnsupportedDomain
from ono.nn.interpolation import interpolate
from ono.problem import Problem

Net = Callable[[Tensor], Tensor]


class GridEnds(nn.Module):
    """Set a trunk [batch width *grid] -> [batch width *grid] between the nodes of a mesh.

    A node is told its values and coordinates; on a structured mesh also its place in the logical
    grid (with position="logical" only that). Times become the last axis of the grid and are told
    as a coordinate. Queries get the output interpolated linearly.

    `padding` leaves an empty stretch between the end of an axis and its periodic repetition, as a
    share of the length of the axis: it means the same at every resolution, and zero is a periodic
    axis. The grid then grows to a `multiple` of nodes. Padding follows the lift and holds zeros.
    """

    place: None = None

    def __init__(
        self,
        model: str,
        problem: Problem,
        *,
        padding: Sequence[float],
        multiple: Sequence[int],
        position: Literal["mesh", "logical"] = "mesh",
    ) -> None:
        super().__init__()
        assert problem.shape is not None
        self.model, self.problem = model, problem
        self.padding, self.multiple = tuple(padding), tuple(multiple)
        self.axes = len(problem.shape) + problem.timed
        self.tell_coords = problem.kind == "grid" or position == "mesh"
        self.tell_logical = problem.kind == "structured"
        self.inputs = problem.in_channels + problem.timed
        self.inputs += problem.dim if self.tell_coords else 0
        self.inputs += len(problem.shape) if self.tell_logical else 0

    def forward(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        lift: Net,
        trunk: Net,
        head: Net,
        query: Domain | None = None,
        time: Tensor | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return head(trunk(lift(features))) at the nodes or queries.

        Lift and head act on single nodes, [batch *grid channels].
        """
        shape = self._shape(domain, time)
        features = self._features(domain, values, shape)
        if time is not None:
            clock = time.reshape(len(time), *(1,) * len(shape), -1, 1)
            clock = clock.expand(-1, *shape, -1, -1)
            features = features.unsqueeze(-2).expand(*clock.shape[:-1], -1)
            features = torch.cat((features, clock), -1)
        grid = features.shape[1:-1]
        v = trunk(self._pad(lift(features).movedim(-1, 1)))
        for axis, nodes in enumerate(grid, 2):
            v = v.narrow(axis, 0, nodes)
        output = head(v.movedim(1, -1))
        if time is not None:
            output = output.movedim(-2, 1)
        output = output.flatten(-1 - len(shape), -2)
        return output if query is None else _carried(domain, output, query)

    def _shape(self, domain: Domain, time: Tensor | None) -> tuple[int, ...]:
        shape = self.problem.shape_of(self.model, domain)
        if len(shape) != len(self.problem.shape or ()):
            raise UnsupportedDomain(
                f"this {self.model} was built for a mesh of {len(self.problem.shape or ())} axes, "
                f"got one of shape {shape}"
            )
        if time is not None and time.ndim != 2:
            raise ShapeError(
                f"{self.model} takes the times of a series as an axis of its grid: give them "
                f"together as [batch time], got {list(time.shape)}"
            )
        return shape

    def _features(
        self, domain: Domain, values: Tensor, shape: tuple[int, ...]
    ) -> Float[Tensor, "batch *grid inputs"]:
        parts = [values.unflatten(1, shape)]
        if self.tell_coords:
            parts.append(domain.coords.unflatten(1, shape).to(values.dtype))
        if self.tell_logical:
            axes = [
                torch.linspace(0, 1, n, device=values.device, dtype=values.dtype) for n in shape
            ]
            logical = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
            parts.append(logical.expand(len(values), *logical.shape))
        features = torch.cat(parts, -1)
        if domain.mask is not None:  # a node that is masked out is a hole: it says nothing
            features = torch.where(domain.mask.unflatten(1, shape)[..., None], features, 0)
        return features

    def _pad(self, v: Float[Tensor, "batch width *grid"]) -> Float[Tensor, "batch width *padded"]:
        sizes = zip(v.shape[2:], self.padding, self.multiple, strict=True)
        margins = [padded_size(*axis) - axis[0] for axis in sizes]
        if not any(margins):
            return v
        return nn.functional.pad(v, [n for margin in reversed(margins) for n in (0, margin)])


def padded_size(nodes: int, padding: float, multiple: int = 1) -> int:
    """Return the nodes of an axis with an empty stretch of so many lengths after its last node.

    85 nodes with 9 more, as published for Darcy flow, have 10 empty steps after 84 filled ones.

    >>> padded_size(85, 10 / 84), padded_size(421, 10 / 84), padded_size(64, 0.0)
    (94, 470, 64)
    >>> padded_size(85, 10 / 84, multiple=8)
    96
    """
    size = max(nodes, nodes - 1 + round(padding * (nodes - 1)))
    return -(-size // multiple) * multiple


def _carried(domain: Domain, output: Tensor, query: Domain) -> Float[Tensor, "batch ... out"]:
    """Interpolate the output at the queries, all times of a point together."""
    if output.ndim == 3:
        return interpolate(domain, output, query, "linear")
    channels = output.movedim(1, 2).flatten(2)
    there = interpolate(domain, channels, query, "linear")
    parts: Tensor = there.unflatten(2, (output.shape[1], -1)).movedim(2, 1)
    return parts
