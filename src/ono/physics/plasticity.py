"""A metal block under a rigid die that is driven into it: die -> displacement at 20 times.

The block stands on a smooth floor, u_y = 0 and u_x free; the die comes down at 3 m/s without
friction. Central differences in time, all of it explicit:

    v += dt a,    u += dt v,    stress += dt (Hooke : D + spin), returned to the yield surface.

A step is a fixed sequence of operations on the buffers of `Motion`, without a look at their values:
the same code runs eagerly, compiled, or recorded as a CUDA graph. Every `ROUND` steps `look` stores
the frames that were reached and sets the steps to come, for each sample by its own cells alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ono.errors import DataError, ShapeError
from ono.physics.die import POINTS
from ono.physics.plastic_block import (
    COURANT,
    DENSITY,
    FRAMES,
    INTERVAL,
    SPEED,
    Motion,
    at_rest,
    cell_shapes,
    forces,
    penetration,
)
from ono.physics.return_map import POISSON, YIELD, YOUNG, von_mises

WAVE = math.sqrt(YOUNG / (1 - POISSON) / DENSITY)  # no wave is faster in plane stress
ROUND = 50  # steps between two looks
CHECK = 16  # rounds between two questions of the host whether all is done, on a GPU

# A sample is given up if a cell has shrunk to this, or a node is this much faster than the die.
SMALLEST, FASTEST = 0.2, 5.0
EXCESS = 1e-3  # of the von Mises stress over the yield stress


@dataclass(frozen=True, slots=True)
class Solution:
    """The displacements, with what the solver can say for them."""

    displacement: Float[Tensor, "batch time i j 2"]
    residual: Float[Tensor, " batch"]  # deepest penetration of the die, in mm
    iterations: Int[Tensor, " batch"]  # time steps
    converged: Bool[Tensor, " batch"]
    smallest: Float[Tensor, " batch"]  # least A / A0 of a cell


def step(motion: Motion) -> None:
    """Advance every sample by its own time step, those that wait by none."""
    force = forces(motion)
    # The last step before a frame ends on it exactly.
    dt = torch.where(motion.left < 1.5 * motion.dt, motion.left, motion.dt)
    moving = dt > 0
    kick = torch.where(moving, (motion.before + dt) / 2, 0.0)
    motion.v.add_(force / motion.mass * kick)
    motion.v[1, :, -1] = 0.0
    if not motion.slides:
        motion.v[0, :, -1] = 0.0
    motion.u.add_(dt * motion.v)
    motion.before.copy_(torch.where(moving, dt, motion.before))
    motion.moved.copy_(dt)
    motion.left.sub_(dt)
    motion.steps.add_(moving)


def look(motion: Motion) -> None:
    """Store the frames that were reached, judge the samples, and choose the next steps.

    With the diagonals p, q of a cell, its largest frequency is at most 2 c / h, where A / h is the
    largest singular value of the matrix (p, q) over sqrt(2): h is the shorter side of a rectangle.
    The speed c is that of the block at rest, because a cell keeps its mass and its volume. Central
    differences are stable up to dt = h / c.
    """
    p, q, twice = cell_shapes(motion)
    pp, qq, pq = p.square().sum(0), q.square().sum(0), (p * q).sum(0)
    side = ((pp + qq) / 4 + (((pp - qq) / 4).square() + (pq / 2).square()).sqrt()).sqrt()
    share = twice / (2 * motion.cell[0] * motion.cell[1])
    limit = motion.courant / WAVE * (twice / side).flatten(0, 1).amin(0) / 2
    smallest = share.flatten(0, 1).amin(0)
    torch.minimum(motion.smallest, smallest, out=motion.smallest)

    gap, slope = penetration(motion)
    depth = (gap / (1 + slope.square()).sqrt()).amax(0)
    torch.maximum(motion.depth, depth, out=motion.depth)

    fastest = motion.v.square().sum(0).flatten(0, 1).amax(0).sqrt()
    worst = von_mises(motion.stress).flatten(0, 1).amax(0)
    # A comparison with NaN is false, so what is not a number is not sound.
    motion.sound.logical_and_(
        (smallest >= SMALLEST) & (fastest <= FASTEST * SPEED) & (worst <= (1 + EXCESS) * YIELD)
    )

    landed = (motion.left == 0) & motion.sound & (motion.frame < FRAMES)
    place = motion.frame.clamp_max(FRAMES - 1).expand(1, *motion.u.shape)
    old = motion.frames.gather(0, place)
    motion.frames.scatter_(0, place, torch.where(landed, motion.u, old))
    motion.frame.add_(landed)
    on = landed & (motion.frame < FRAMES)
    motion.due.add_(INTERVAL * on)
    left = torch.where(on, INTERVAL, motion.left)
    motion.left.copy_(torch.where(motion.sound, left, 0.0))
    motion.dt.copy_(motion.left / (motion.left / limit).ceil().clamp_min(1))


def advance_round(motion: Motion, advance: Callable[[Motion], None]) -> None:
    """Look once and take `ROUND` steps."""
    look(motion)
    for _ in range(ROUND):
        advance(motion)


def record(motion: Motion) -> Callable[[], None]:
    """Compile the step, record a round as a CUDA graph, and return what repeats `CHECK` rounds."""
    fused = torch.compile(step, dynamic=False, fullgraph=True)
    # What is recorded must have run before, on a stream that is not the default one.
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        advance_round(motion, fused)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        advance_round(motion, fused)

    def repeat() -> None:
        for _ in range(CHECK):
            graph.replay()

    return repeat


def march(motion: Motion, limit: int) -> None:
    """Run until every sample is over, at most about `limit` steps."""
    if motion.u.is_cuda:
        with torch.cuda.device(motion.u.device):
            repeat, steps = record(motion), CHECK * ROUND
    else:
        repeat, steps = partial(advance_round, motion, step), ROUND
    for _ in range(0, limit, steps):
        repeat()
        if motion.over().all():
            return


@torch.no_grad()
def solve(
    heights: Float[Tensor, "batch points"],
    *,
    nodes: tuple[int, int] = (101, 31),
    slides: bool = True,
    courant: float = COURANT,
    dtype: torch.dtype = torch.float32,
    limit: int = 400_000,
) -> Solution:
    """Return the displacements of `nodes` at 0, 0.1 ... 1.9 ms under dies of the given heights.

    `heights` are in the order of `ono.physics.die`, from left to right; nodes go from right to
    left. Without `slides` the bottom is clamped. Everything runs on the device of `heights`.
    """
    if heights.shape != (len(heights), POINTS) or not len(heights):
        raise ShapeError(f"plasticity needs heights (batch, {POINTS}), got {tuple(heights.shape)}")
    if min(nodes) < 2:
        raise ShapeError(f"the block needs at least 2 x 2 nodes, got {nodes[0]} x {nodes[1]}")
    if not 0 < courant < 1:
        raise DataError(f"the Courant number must lie between 0 and 1, got {courant}")
    motion = at_rest(heights, nodes, slides=slides, courant=courant, dtype=dtype)
    march(motion, limit)
    return Solution(
        displacement=motion.frames.movedim((-1, 1), (0, -1)),
        residual=motion.depth.double(),
        iterations=motion.steps,
        converged=motion.sound & (motion.frame == FRAMES),
        smallest=motion.smallest.double(),
    )
