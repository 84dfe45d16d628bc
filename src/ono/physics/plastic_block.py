"""A block of metal cells: how stress follows motion, and what forces it puts on the nodes.

The block (50 x 15 mm) is in plane stress, elastic and perfectly plastic after von Mises. Units are
mm, ms, MPa, and so g for mass. Node (i, j) starts at x = 0.35 - i dx, y = 14.9 - j dy; j = 0 is
below the die. The sample is the last axis of every array.

A four-node cell has one stress. Plastic flow keeps the volume, so a cell of area A is A0 / A thick.
What one point cannot see, the hourglass motion, is held by a weak spring and a damper. A top node
above the die's surface is pushed back along its normal by a spring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ono.physics.die import RIGHT, TOP, Surface
from ono.physics.return_map import POISSON, SHEAR, YIELD, YOUNG, return_to_yield

WIDTH, HEIGHT = 50.0, 15.0
DENSITY = 7.85e-3
SPEED = 3.0  # of the die
FRAMES, INTERVAL = 20, 0.1  # frame 0 is the block at rest

# Time steps are this part of what keeps a cell stable. The rest is for the spring of a top node,
# CONTACT dx / dy: with both, (frequency x step)² is at most 4 COURANT² (1 + (1 - nu) / 2) < 4.
COURANT = 0.85
CONTACT = YOUNG / 2
SPRING, SPRING_LIMIT, DAMPER = 0.05 * SHEAR, 0.5 * YIELD, 0.05 * math.sqrt(DENSITY * YOUNG)


@dataclass(frozen=True, slots=True)
class Motion:
    """The state of all samples; `forces` and the solver change it in place."""

    start: Float[Tensor, "2 i j 1"]
    mass: Float[Tensor, "i j 1"]
    cell: tuple[float, float]  # dx and dy
    across: Float[Tensor, "2 2 1 1 1"]  # the diagonals of a cell at rest
    slides: bool
    courant: float  # see COURANT
    die: Surface
    u: Float[Tensor, "2 i j batch"]
    v: Float[Tensor, "2 i j batch"]
    stress: Float[Tensor, "3 cells_i cells_j batch"]
    hourglass: Float[Tensor, "2 cells_i cells_j batch"]
    due: Float[Tensor, " batch"]  # the time of the next frame
    left: Float[Tensor, " batch"]  # how long until then; 0 while a sample waits for a look
    dt: Float[Tensor, " batch"]  # the usual step of this round
    moved: Float[Tensor, " batch"]  # the last step; 0 after a sample has waited
    before: Float[Tensor, " batch"]  # the last step that was not 0
    steps: Int[Tensor, " batch"]
    frame: Int[Tensor, " batch"]  # the next one
    sound: Bool[Tensor, " batch"]
    frames: Float[Tensor, "time 2 i j batch"]
    depth: Float[Tensor, " batch"]
    smallest: Float[Tensor, " batch"]

    def over(self) -> Tensor:
        """Say which samples are at their end, good or bad."""
        return ~self.sound | (self.frame == FRAMES)


def reference_nodes(nodes: tuple[int, int]) -> Float[Tensor, "i j 2"]:
    """Return the nodes of the block at rest in float64.

    >>> reference_nodes((101, 31))[[0, 100], [0, 30]].tolist()
    [[0.35, 14.9], [-49.65, -0.09999999999999964]]
    """
    i, j = (torch.arange(n, dtype=torch.float64) for n in nodes)
    x, y = RIGHT - i * WIDTH / (nodes[0] - 1), TOP - j * HEIGHT / (nodes[1] - 1)
    return torch.stack(torch.meshgrid(x, y, indexing="ij"), -1)


def at_rest(
    heights: Float[Tensor, "batch points"],
    nodes: tuple[int, int],
    *,
    slides: bool = True,
    courant: float = COURANT,
    dtype: torch.dtype = torch.float32,
) -> Motion:
    """Return blocks at rest below their dies."""
    (i, j), batch = nodes, len(heights)
    cells = (i - 1, j - 1)
    dx, dy = WIDTH / cells[0], HEIGHT / cells[1]
    share = torch.nn.functional.pad(torch.ones(1, 1, *cells, dtype=torch.float64), (1, 1, 1, 1))
    share = torch.nn.functional.avg_pool2d(share, 2, stride=1)[0, 0]  # of a cell's mass
    mass = DENSITY * dx * dy * share

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(*shape, batch, dtype=dtype, device=heights.device)

    u = zeros(2, i, j)
    whole = torch.zeros(batch, dtype=torch.int64, device=heights.device)
    return Motion(
        start=reference_nodes(nodes).movedim(-1, 0)[..., None].to(u),
        mass=mass[..., None].to(u),
        cell=(dx, dy),
        across=torch.tensor([[-dx, -dy], [dx, -dy]])[..., None, None, None].to(u),
        slides=slides,
        courant=courant,
        die=Surface.through(heights, u),
        u=u,
        v=zeros(2, i, j),
        stress=zeros(3, *cells),
        hourglass=zeros(2, *cells),
        due=zeros() + INTERVAL,
        left=zeros() + INTERVAL,
        dt=zeros(),
        moved=zeros(),
        before=zeros(),
        steps=whole.clone(),
        frame=whole + 1,
        sound=whole == 0,
        frames=zeros(FRAMES, 2, i, j),
        depth=zeros(),
        smallest=zeros() + 1,
    )


def diagonals(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for nodal values, the differences across the two diagonals of each cell."""
    return x[:, 1:, 1:] - x[:, :-1, :-1], x[:, :-1, 1:] - x[:, 1:, :-1]


def crossed(x: Tensor) -> Tensor:
    """Return the hourglass part of nodal values: two opposite corners less the other two."""
    return (x[:, 1:, 1:] + x[:, :-1, :-1]) - (x[:, :-1, 1:] + x[:, 1:, :-1])


def cell_shapes(motion: Motion) -> tuple[Tensor, Tensor, Tensor]:
    """Return the diagonals p, q of the deformed cells and twice their area, p x q."""
    p, q = diagonals(motion.u)
    p, q = p + motion.across[0], q + motion.across[1]
    return p, q, p[0] * q[1] - p[1] * q[0]


def penetration(motion: Motion) -> tuple[Tensor, Tensor]:
    """Return how far the top nodes are above the die's surface (y), and the slope there."""
    height, slope = motion.die.profile(motion.start[0, :, 0] + motion.u[0, :, 0])
    return motion.u[1, :, 0] - height + SPEED * (motion.due - motion.left), slope


def update_stress(motion: Motion, along_x: Tensor, along_y: Tensor) -> Tensor:
    """Carry the stress over the last step, and return the rotation in it.

    `along_x`, `along_y` are the derivatives of the displacement in that step.
    """
    xx, xy, yy = motion.stress.unbind()
    turn = (along_y[0] - along_x[1]) / 2
    plane = YOUNG / (1 - POISSON**2)
    twist = 2 * turn * xy
    trial = torch.stack(
        (
            xx + plane * (along_x[0] + POISSON * along_y[1]) + twist,
            xy + SHEAR * (along_y[0] + along_x[1]) + turn * (yy - xx),
            yy + plane * (POISSON * along_x[0] + along_y[1]) - twist,
        )
    )
    # A sample that waits keeps its stress to the last bit.
    motion.stress.copy_(torch.where(motion.moved > 0, return_to_yield(trial), motion.stress))
    return turn


def hourglass_force(motion: Motion, rate: Tensor, turn: Tensor, size: float) -> Tensor:
    """Carry the hourglass spring over the last step; return its force with the damper's."""
    spring = motion.hourglass
    turned = torch.stack((turn * spring[1], -turn * spring[0]))
    spring = spring + turned + SPRING * motion.moved * rate
    limit = SPRING_LIMIT * size
    motion.hourglass.copy_(spring * (limit / (spring.square().sum(0).sqrt() + 1e-20)).clamp_max(1))
    return motion.hourglass + DAMPER * size * rate


def forces(motion: Motion) -> Tensor:
    """Carry the cells over the last step, and return the forces on the nodes."""
    p, q, twice = cell_shapes(motion)
    vp, vq = diagonals(motion.v)
    along_x, along_y = (vp * q[1] - vq * p[1]) / twice, (vq * p[0] - vp * q[0]) / twice
    turn = update_stress(motion, motion.moved * along_x, motion.moved * along_y)

    size = math.sqrt(motion.cell[0] * motion.cell[1])
    bend = crossed(motion.u)
    rate = crossed(motion.v) - along_x * bend[0] - along_y * bend[1]
    hold = hourglass_force(motion, rate, turn, size)

    # The gradient of a corner's function is a diagonal turned by 90 degrees, over 2 A; so is what
    # makes the hourglass force blind to uniform strain. The thickness is A0 / A.
    of_x = motion.stress[:2] - hold * (2 * bend[0] / twice)
    of_y = motion.stress[1:] - hold * (2 * bend[1] / twice)
    half = size**2 / twice
    fp, fq = half * (of_x * q[1] - of_y * q[0]), half * (of_y * p[0] - of_x * p[1])
    hold = 2 * half * hold
    force = torch.zeros_like(motion.u)
    force[:, 1:, 1:] -= fp + hold
    force[:, :-1, :-1] += fp - hold
    force[:, :-1, 1:] -= fq - hold
    force[:, 1:, :-1] += fq + hold

    gap, slope = penetration(motion)
    push = CONTACT * motion.cell[0] / motion.cell[1] * gap.clamp_min(0) / (1 + slope.square())
    force[0, :, 0] += push * slope
    force[1, :, 0] -= push
    return force
