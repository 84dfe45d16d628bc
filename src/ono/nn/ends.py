"""The two ends of an operator whose trunk works on a grid.

A model makes them once and puts its own lift, trunk and head between them:

    self.ends = ends_for("fno", problem, width=32, modes=(12, 12), padding=0.119)
    self.lift = nn.Linear(self.ends.inputs, width)
    ...
    return self.ends(domain, values, lift=self.lift, trunk=self._trunk, head=self.head,
                     query=query, time=time)

`lift` and `head` act on the last axis, `trunk` takes [batch width *grid] to the same shape, with
`ends.axes` grid axes of any size. `ends.place` holds the coordinates of the latent nodes of a
cloud [dim *grid], and is None on grids, where the features have them.
"""

from __future__ import annotations

from typing import Literal, TypeVar

from ono.errors import InputError
from ono.nn.cloud_ends import CloudEnds
from ono.nn.grid_ends import GridEnds
from ono.problem import Problem

Number = TypeVar("Number", int, float)


def ends_for(
    model: str,
    problem: Problem,
    *,
    width: int,
    modes: int | tuple[int, ...],
    padding: float | tuple[float, ...] = 0.0,
    multiple: int | tuple[int, ...] = 1,
    position: Literal["mesh", "logical"] = "mesh",
    latent: int = 40,
    deformation_width: int = 32,
) -> GridEnds | CloudEnds:
    """Return the ends that the kind of a problem calls for.

    Padding, multiple and position are for grids and meshes; width, modes and latent, the nodes
    along each axis of the latent grid, for clouds.
    """
    axes = trunk_axes(problem)
    if problem.shape is not None:
        return GridEnds(
            model,
            problem,
            padding=per_axis(model, "padding", padding, axes),
            multiple=per_axis(model, "multiple", multiple, axes),
            position=position,
        )
    kept = per_axis(model, "modes", modes, axes)
    if 2 * max(kept) > latent:
        raise InputError(
            f"{model} with modes {kept} needs a latent grid of at least {2 * max(kept)} nodes "
            f"along each axis, got latent={latent}"
        )
    return CloudEnds(
        problem, width=width, modes=kept, latent=latent, deformation_width=deformation_width
    )


def trunk_axes(problem: Problem) -> int:
    """Return the axes of the grid a trunk works on: those of the mesh and time, or the latent ones.

    >>> trunk_axes(Problem.grid((101, 31), in_channels=1, out_channels=4, timed=True))
    3
    """
    return problem.dim if problem.shape is None else len(problem.shape) + problem.timed


def per_axis(
    model: str, name: str, given: Number | tuple[Number, ...], axes: int
) -> tuple[Number, ...]:
    """Return one number an axis; a single one is for all of them.

    >>> per_axis("fno", "modes", 12, 2), per_axis("fno", "modes", (24, 12), 2)
    ((12, 12), (24, 12))
    """
    if not isinstance(given, tuple):
        return (given,) * axes
    if len(given) != axes:
        raise InputError(
            f"{model} got {name} {given} for {len(given)} axes, its grid has {axes}; give one "
            "number, or one an axis"
        )
    return given
