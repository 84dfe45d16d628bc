"""Steady viscous flow through a curved pipe: the mesh -> velocity and pressure.

The pipe is 10 long and 1 wide, measured vertically: X = x, Y = c(x) + y with |y| <= 1/2. Its centre
line c is cubic on each quarter, in Hermite form: with t from 0 to 1 on quarter k,

    c = (1 + 2t)(1 - t)² d_k + t (1 - t)² s_k + t² (3 - 2t) d_k+1 + t² (t - 1) s_k+1,

d_0 = 0, so that s is a slope by t, and s / 2.5 one by x. Nine numbers make a pipe:
d_1 ... d_4, s_0 ... s_4. The flow obeys

    (u · grad) u = nu Lap u - grad p,    div u = 0,

with no slip at the walls, u = (1/4 · (1 - 4 y²), 0) at the inlet, and a free outlet,
nu du/dn = p n. `solve` uses Newton's method on Taylor-Hood elements, from Stokes's flow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from ono.errors import DataError, ShapeError
from ono.physics import column_elimination, sparse_lu, taylor_hood
from ono.physics.taylor_hood import Mesh

LENGTH, WIDTH, QUARTERS = 10.0, 1.0, 4
NUMBERS = 2 * QUARTERS + 1
OFFSET, SLOPE = 1.0, 2.0  # d ~ U[-1, 1], s ~ U[-2, 2]
SPEED = 0.25  # the largest at the inlet
VISCOSITY = 0.005
NODES = 129
ACCEPTED = 1e-9  # a sample has converged if its true relative residual is at most this
TOGETHER = 8  # samples whose matrices a CPU holds at once
EASIER = (4.0, 2.0, 1.0)  # viscosities on the way to a flow that Newton's method did not reach

Linear = Callable[[Tensor, Tensor], Tensor]  # element matrices and right side -> solution


def centre_numbers(
    seed: int, index: int, attempt: int = 0, *, offset: float = OFFSET, slope: float = SLOPE
) -> NDArray[np.float64]:
    """Draw d_1 ... d_4 ~ U[-offset, offset] and s_0 ... s_4 ~ U[-slope, slope] of one pipe.

    >>> centre_numbers(seed=0, index=7).shape
    (9,)
    """
    stream = np.random.Philox(np.random.SeedSequence((seed, index, attempt)))
    bound = np.repeat((offset, slope), (QUARTERS, QUARTERS + 1))
    return np.random.Generator(stream).uniform(-bound, bound)


def centre_line(
    numbers: Float[Tensor, "batch numbers"], x: Float[Tensor, " points"]
) -> Float[Tensor, "batch points"]:
    """Return c(x) for 0 <= x <= 10.

    >>> numbers = torch.tensor([[0.5, 1.0, -0.5, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    >>> centre_line(numbers, torch.tensor([0.0, 1.25, 2.5, 5.0, 10.0])).tolist()
    [[0.0, 0.125, 0.5, 1.0, 0.0]]
    """
    d = torch.cat((torch.zeros_like(numbers[:, :1]), numbers[:, :QUARTERS]), 1)
    s = numbers[:, QUARTERS:]
    along = x * (QUARTERS / LENGTH)
    k = along.long().clamp(0, QUARTERS - 1)
    t = along - k
    ends = (1 + 2 * t) * (1 - t) ** 2 * d[:, k] + t**2 * (3 - 2 * t) * d[:, k + 1]
    return ends + t * (1 - t) ** 2 * s[:, k] + t**2 * (t - 1) * s[:, k + 1]


@dataclass(frozen=True, slots=True)
class Solution:
    """The flow at the nodes, inlet first and lower wall first, with the evidence that it is one."""

    points: Float[Tensor, "batch nodes nodes 2"]
    velocity: Float[Tensor, "batch nodes nodes 2"]
    pressure: Float[Tensor, "batch nodes nodes"]  # bilinear between the corners of elements
    residual: Float[Tensor, " batch"]  # of the weak form, over that of the inlet's flow alone
    iterations: Int[Tensor, " batch"]  # linear systems solved, Stokes's among them
    converged: Bool[Tensor, " batch"]


@dataclass(frozen=True, slots=True)
class Flow:
    """A batch of pipes on a mesh: the discrete equations, and a way to solve them made linear."""

    mesh: Mesh
    gradient: Float[Tensor, "batch columns 9 9 2"]
    inlet: Float[Tensor, " unknowns"]  # the given velocities, 0 elsewhere
    linear: Linear

    def at(self, rows: Int[Tensor, " rows"]) -> Flow:
        """Return these pipes alone."""
        return Flow(self.mesh, self.gradient[rows], self.inlet, self.linear)

    def start(self) -> Float[Tensor, "batch unknowns"]:
        """Return what is given, with no flow behind the inlet."""
        return self.inlet.repeat(len(self.gradient), 1)

    def residual(self, x: Tensor, viscosity: float, *, advection: bool = True) -> Tensor:
        """Return what is left of the weak form at x."""
        return taylor_hood.residual(self.mesh, self.gradient, x, viscosity, advection=advection)

    def step(self, x: Tensor, viscosity: float, *, advection: bool = True) -> Tensor:
        """Return x after one step of Newton's method."""
        matrices = taylor_hood.jacobian(self.mesh, self.gradient, x, viscosity, advection=advection)
        return x - self.linear(matrices, self.residual(x, viscosity, advection=advection))


def newton(
    flow: Flow,
    x: Float[Tensor, "batch unknowns"],
    viscosity: float,
    tolerance: float,
    limit: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the flow reached from x, its residual, and the steps of each sample.

    The residual is relative to that of `flow.start`. A sample that has arrived is frozen.
    """
    scale = flow.residual(flow.start(), viscosity).norm(dim=1)
    steps = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    x = x.clone()
    while True:
        left = flow.residual(x, viscosity).norm(dim=1) / scale
        active = ((left > tolerance) & (steps < limit)).nonzero().flatten()  # a NaN is not active
        if not len(active):
            return x, left, steps
        x[active] = flow.at(active).step(x[active], viscosity)
        steps[active] += 1


def steady(
    flow: Flow, viscosity: float, tolerance: float, limit: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the flow from Stokes's, its residual and iterations; through `EASIER` if need be."""
    stokes = flow.step(flow.start(), viscosity, advection=False)
    x, left, steps = newton(flow, stokes, viscosity, tolerance, limit)
    failed = (~(left <= ACCEPTED)).nonzero().flatten()
    if len(failed):
        part, again = flow.at(failed), stokes[failed]
        for factor in EASIER:
            again, left[failed], more = newton(part, again, factor * viscosity, tolerance, limit)
            steps[failed] += more
        x[failed] = again
    return x, left, steps + 1


def _linear(mesh: Mesh, dense: bool) -> Linear:
    if dense:
        return column_elimination.columns(mesh).solve
    return sparse_lu.pattern(mesh.unknowns, mesh.free).solve


def _together(mesh: Mesh) -> int:
    """Return how many samples to solve at once: on a GPU, as many dense columns as it holds."""
    if mesh.free.device.type != "cuda":
        return TOGETHER
    free, _ = torch.cuda.mem_get_info(mesh.free.device)
    held = torch.cuda.memory_reserved(mesh.free.device)
    held -= torch.cuda.memory_allocated(mesh.free.device)
    # Three dense matrices a column, all told, of 8 bytes an entry; a fifth is kept in reserve.
    entries = mesh.side * column_elimination.columns(mesh).size ** 2
    return max(1, int(0.8 * (free + held) / (3 * 8 * entries)))


def bilinear(corners: Float[Tensor, "batch m m"]) -> Float[Tensor, "batch nodes nodes"]:
    """Return values at all nodes from those at every other: means of two or of four.

    >>> bilinear(torch.tensor([[[0.0, 2.0], [4.0, 6.0]]])).tolist()
    [[[0.0, 1.0, 2.0], [2.0, 3.0, 4.0], [4.0, 5.0, 6.0]]]
    """
    m = corners.shape[-1]
    out = corners.new_empty(len(corners), 2 * m - 1, 2 * m - 1)
    out[:, ::2, ::2] = corners
    out[:, 1::2, ::2] = (corners[:, 1:] + corners[:, :-1]) / 2
    out[:, :, 1::2] = (out[:, :, 2::2] + out[:, :, :-2:2]) / 2
    return out


@torch.no_grad()
def solve(
    numbers: Float[Tensor, "batch numbers"],
    *,
    nodes: int = NODES,
    viscosity: float = VISCOSITY,
    speed: float = SPEED,
    tolerance: float = 1e-10,
    limit: int = 12,
    dense: bool | None = None,
) -> Solution:
    """Return the flow through pipes given by their nine numbers, in float64 on their device.

    `nodes` along each axis is odd. Below 33 the flow is only a sketch (errors of 8 to 30 %).
    Unless told, take `dense` columns on a GPU and sparse LU on a CPU.

    >>> solution = solve(torch.zeros(1, 9), nodes=9)
    >>> round(float(solution.velocity[0, 5, 4, 0]), 12), solution.converged.tolist()
    (0.25, [True])
    """
    if not len(numbers) or numbers.shape != (len(numbers), NUMBERS):
        raise ShapeError(
            f"pipes need numbers (batch, {NUMBERS}), not empty, got {tuple(numbers.shape)}"
        )
    if nodes < 5 or nodes % 2 == 0:
        raise ShapeError(f"a pipe needs an odd number of nodes along each axis from 5, got {nodes}")
    if not numbers.isfinite().all():
        which = (~numbers.isfinite()).any(1).nonzero().flatten().tolist()
        raise DataError(
            f"the numbers of a pipe must be finite; {len(which)} of {len(numbers)} samples are "
            f"not, the first at batch index {which[0]}"
        )
    if not viscosity > 0:
        raise DataError(f"viscosity must be positive, got {viscosity}")
    device, batch = numbers.device, len(numbers)
    dense = device.type != "cpu" if dense is None else dense
    mesh = taylor_hood.strip((nodes - 1) // 2, LENGTH, WIDTH, device)
    x = torch.linspace(0, LENGTH, nodes, dtype=torch.float64, device=device)
    y = torch.linspace(-WIDTH / 2, WIDTH / 2, nodes, dtype=torch.float64, device=device)
    centre = centre_line(numbers.double(), x)
    points = torch.stack((x[:, None].expand(batch, nodes, nodes), centre[..., None] + y), -1)
    inlet = torch.zeros(len(mesh.free), dtype=torch.float64, device=device)
    inlet[: 2 * nodes : 2] = speed * (1 - 4 * (y / WIDTH).square())
    flow = Flow(mesh, taylor_hood.gradients(mesh, centre), inlet, _linear(mesh, dense))

    found, residual = inlet.new_empty(batch, len(inlet)), inlet.new_empty(batch)
    iterations = torch.zeros(batch, dtype=torch.int64, device=device)
    parts = -(-batch // _together(mesh))
    for rows in torch.arange(batch, device=device).chunk(parts):
        found[rows], residual[rows], iterations[rows] = steady(
            flow.at(rows), viscosity, tolerance, limit
        )
    velocity = found[:, : 2 * nodes**2].reshape(batch, nodes, nodes, 2)
    corners = found[:, 2 * nodes**2 :].reshape(batch, mesh.side + 1, mesh.side + 1)
    return Solution(points, velocity, bilinear(corners), residual, iterations, residual <= ACCEPTED)
