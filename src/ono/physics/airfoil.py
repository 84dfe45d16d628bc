"""Transonic flow past airfoils: shape -> density, velocity, pressure and Mach number at nodes.

Each flow is marched from the free stream until its density residual has fallen to 2e-4 of what it
was at the start, first on every second node of the mesh where possible; 5e-4 is accepted. What the
Mach number then still lacks is about as much, relative to itself. Behind very strong shocks the
flow may turn back on itself and never come to rest: such a sample has not converged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ono.errors import DataError
from ono.physics.c_mesh import PUBLISHED, Cells, c_mesh
from ono.physics.ddadi import change
from ono.physics.euler import (
    Geometry,
    J,
    K,
    density_residual,
    free_stream,
    geometry,
    ghosted,
    nodal,
    residual,
)
from ono.physics.roe import primitive

TOLERANCE = 2e-4  # of the density residual, relative to that of the free stream
ACCEPTED = 5e-4  # some flows come no further, because the limiter switches for ever
LOOK = 10  # steps between two looks at who has arrived
LEAVE = 0.75  # those who have not go on alone when they are fewer than this

# Cells marched together: what suits a CPU's cache, and the memory of a GPU.
CHUNK = {"cpu": 2**14, "cuda": 2**24}


@dataclass(frozen=True, slots=True)
class Schedule:
    """How to march: the Courant number grows from `first` to `last` in `ramp` steps.

    Slopes grow from none to all of themselves in the `settle` steps after those: a shock finds
    its place in a viscous flow first.
    """

    first: float
    last: float
    ramp: int
    limit: int
    settle: int


COARSE = Schedule(2.0, 60.0, 50, 500, settle=100)  # every second node of a large mesh
FINE = Schedule(3.0, 60.0, 30, 1000, settle=50)  # then all nodes
SMALL = Schedule(2.0, 60.0, 50, 600, settle=100)  # a mesh too small to be halved
REMEDY = Schedule(2.0, 5.0, 30, 3000, settle=100)  # where that failed: short steps, for long


@dataclass(frozen=True, slots=True)
class Solution:
    """The flow at the nodes, with the evidence that it is one."""

    nodes: Float[Tensor, "batch along out 2"]
    flow: Float[Tensor, "batch along out 5"]  # rho, u, v, p, Mach number
    residual: Float[Tensor, " batch"]  # of the last state, in float64, over that of the free stream
    iterations: Int[Tensor, " batch"]  # on all meshes
    converged: Bool[Tensor, " batch"]


class _March:
    """Flows on their way to rest; `step` changes the tensors in place and never looks at them."""

    def __init__(self, g: Geometry, w: Tensor, start: Tensor, schedule: Schedule) -> None:
        self.g, self.w, self.start, self.schedule = g, w, start, schedule
        self.iterations = torch.zeros_like(start, dtype=torch.int64)
        self.moving = torch.ones_like(start, dtype=torch.bool)

    def step(self) -> None:
        """Advance every flow that has not arrived, is finite and may go on."""
        s = self.schedule
        v = primitive(self.w)
        along, out = ghosted(self.g, v)
        share = ((self.iterations - s.ramp) / s.settle).clamp(0, 1).to(v)
        r = residual(self.g, along, out, share)
        left = density_residual(self.g, r)
        far = (left > TOLERANCE * self.start) | ((share < 1) & left.isfinite())  # a NaN is not
        self.moving.logical_and_(far).logical_and_(self.iterations < s.limit)
        cfl = s.first + (s.last - s.first) * (self.iterations / s.ramp).clamp_max(1)
        dw = change(self.g, v, along, out, r, cfl.to(v))
        self.w.copy_(torch.where(self.moving, self.w + dw, self.w))
        self.iterations.add_(self.moving)

    def take(self, which: Tensor) -> _March:
        """Return the march of some flows."""
        part = _March(self.g.take(which), self.w[..., which], self.start[which], self.schedule)
        part.iterations = self.iterations[which]
        return part


def _repeat(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return a function that does LOOK steps; on a GPU a step is recorded once and played back.

    A step is some 700 small operations: starting them one by one takes longer than doing them.
    """

    def loop() -> None:
        for _ in range(LOOK):
            step()

    if device.type != "cuda":
        return loop
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        step()  # a first time outside of the recording, as CUDA wants; it counts
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()

    def replay() -> None:
        for _ in range(LOOK):
            graph.replay()

    return replay


def march(
    g: Geometry, w: Float[Tensor, "4 2 k j batch"], schedule: Schedule
) -> Int[Tensor, " batch"]:
    """Bring flows to rest, in place, and return the steps each took.

    A flow stops at the step at which it arrives, whatever the others do; as they become fewer,
    those left are gathered, so that nobody computes for those who have arrived.
    """
    everyone = torch.arange(w.shape[-1], device=w.device)
    iterations = torch.zeros_like(everyone)
    v = primitive(free_stream(g))
    start = density_residual(g, residual(g, *ghosted(g, v)))
    group = _March(g, w.clone(), start, schedule)
    while len(everyone):
        run = _repeat(group.step, w.device)
        count = len(everyone)
        while count > LEAVE * len(everyone):
            run()
            count = int(group.moving.sum())
        w[..., everyone], iterations[everyone] = group.w, group.iterations
        left = group.moving.nonzero().flatten()
        everyone, group = everyone[left], group.take(left)
        del run  # the recording holds the memory of a step
    return iterations


def _true_residual(g: Geometry, w: Tensor) -> Tensor:
    """Return the density residual over that of the free stream, in float64."""
    g, ratio = g.to(torch.float64), []
    for state in (w.double(), free_stream(g)):
        r = residual(g, *ghosted(g, primitive(state)))
        ratio.append(density_residual(g, r))
    return (ratio[0] / ratio[1]).nan_to_num(nan=torch.inf)


def _solve_together(nodes: Tensor, cells: Cells, dtype: torch.dtype) -> Solution:
    """Solve for flows that share every operation but no number."""
    exact = geometry(nodes, cells.around // 2)
    g = exact.to(dtype)
    w, schedule = free_stream(g), SMALL
    iterations = torch.zeros(len(nodes), dtype=torch.int64, device=nodes.device)
    if cells.can_be_halved:
        coarse = geometry(nodes[:, ::2, ::2], cells.around // 4).to(dtype)
        begin = free_stream(coarse)
        iterations += march(coarse, begin, COARSE)
        finite = begin.isfinite().flatten(0, 3).all(0)
        begin = begin.repeat_interleave(2, K).repeat_interleave(2, J)
        w, schedule = torch.where(finite, begin, w), FINE
    begin = w.clone()
    iterations += march(g, w, schedule)
    ratio = _true_residual(exact, w)
    unfolded = (exact.volume > 0).flatten(0, 2).all(0)
    again = (unfolded & ~(ratio <= ACCEPTED)).nonzero().flatten()
    if len(again):
        other = begin[..., again]
        iterations[again] += march(g.take(again), other, REMEDY)
        w[..., again], ratio[again] = other, _true_residual(exact.take(again), other)
    flow = nodal(g, w)
    positive = (flow[..., 0] > 0) & (flow[..., 3] > 0)
    converged = unfolded & (ratio <= ACCEPTED) & positive.flatten(1).all(1)
    return Solution(nodes, flow, ratio, iterations, converged)


@torch.no_grad()
def solve(
    theta: Float[Tensor, "batch parameters"],
    *,
    cells: Cells = PUBLISHED,
    dtype: torch.dtype = torch.float32,
) -> Solution:
    """Return the flow past the airfoils of theta, on the device of theta.

    The mesh and the final residual are in float64, the march and its result in `dtype`. A flow
    that fails is started again with shorter steps.

    >>> solution = solve(torch.zeros(1, 8), cells=Cells(5, 14, 5))
    >>> solution.flow.shape, solution.converged.tolist()
    (torch.Size([1, 25, 6, 5]), [True])
    """
    nodes = c_mesh(theta, cells)
    if dtype not in (torch.float32, torch.float64):
        raise DataError(f"a flow is computed in float32 or float64, not in {dtype}")
    chunk = max(1, CHUNK[theta.device.type] // (cells.along * cells.out))
    parts = [_solve_together(part, cells, dtype) for part in nodes.split(chunk)]
    return Solution(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Solution)))
