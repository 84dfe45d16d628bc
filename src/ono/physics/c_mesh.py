"""Airfoils drawn at random, and the C-mesh around each.

A shape is NACA 0012, its vertical coordinates moved by eight control points: with Phi_i the cubic
Lagrange polynomials on x = -0.25, 0.25, 0.75, 1.25 and Psi linear between y = -0.1 and 0.1,

    y += sum over i = 1..8 of theta_i Phi_i(x) Psi_i(y),

where points 1..4 are the lower ones from left to right, 5..8 the upper ones from right to left.

Node (i, j) of the mesh: i runs from the upper outlet along the cut to the trailing edge, over the
upper side to the nose, back along the lower side and the cut to the lower outlet; j runs from the
wall or cut to the far field. The two halves of the cut, i and last - i, are the same points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ono.errors import DataError, ShapeError

PARAMETERS, LARGEST = 8, 0.05
COLUMNS = (-0.25, 0.25, 0.75, 1.25)  # x of the control points
HEIGHT = 0.1  # they lie at y = -HEIGHT and y = HEIGHT
FAR = 40.0  # radius of the outer half circle around (1, 0), and x of the outlet
GROWTH, STEEPEST = 1.02, 2.0  # of the cells near the wall, and the most allowed after them


@dataclass(frozen=True, slots=True)
class Cells:
    """How many cells lie along each half of the cut, around the airfoil, and outwards."""

    wake: int = 50
    around: int = 120
    out: int = 50

    def __post_init__(self) -> None:
        if self.wake < 2 or self.around < 8 or self.around % 2 or self.out < 2:
            raise ShapeError(
                f"a C-mesh needs at least 2 cells on the cut and outwards, and an even number "
                f"from 8 on around the airfoil; got {self.wake}, {self.out} and {self.around}"
            )

    @property
    def along(self) -> int:
        """Return the number of cells from outlet to outlet."""
        return 2 * self.wake + self.around

    @property
    def nodes(self) -> tuple[int, int]:
        """Return the logical shape of the nodes.

        >>> Cells().nodes
        (221, 51)
        """
        return self.along + 1, self.out + 1

    @property
    def can_be_halved(self) -> bool:
        """Say whether every second node makes a C-mesh with the same nose and trailing edge."""
        return self.wake % 2 == self.around % 4 == self.out % 2 == 0


PUBLISHED = Cells()


def shape_parameters(seed: int, index: int, attempt: int = 0) -> NDArray[np.float64]:
    """Draw theta ~ U[-0.05, 0.05] of one airfoil; the first of the eight is zero.

    >>> shape_parameters(seed=0, index=7).shape
    (8,)
    """
    stream = np.random.Philox(np.random.SeedSequence((seed, index, attempt)))
    theta = np.random.Generator(stream).uniform(-LARGEST, LARGEST, PARAMETERS)
    theta[0] = 0.0
    return theta


def profile(around: int) -> Float[Tensor, "points 2"]:
    """Return NACA 0012 from the trailing edge over the upper side to the nose and back.

    Points are equally far apart in x, but for one more at a quarter of the step next to the nose.
    """
    step = 1 / (around // 2 - 1)
    x = torch.arange(around // 2, dtype=torch.float64) * step
    x = torch.cat((x[:1], x[1:2] / 4, x[1:]))
    x[-1] = 1.0
    y = 0.6 * (0.2969 * x.sqrt() + x * (-0.1260 + x * (-0.3516 + x * (0.2843 - x * 0.1036))))
    y[-1] = 0.0  # but for rounding it is
    upper = torch.stack((x, y), -1).flip(0)
    return torch.cat((upper, torch.stack((x, -y), -1)[1:]))


def morph(
    theta: Float[Tensor, "batch parameters"], points: Float[Tensor, "points 2"]
) -> Float[Tensor, "batch points 2"]:
    """Move points of the plane by the eight control points.

    >>> morph(torch.tensor([[0.0, 0, 0, 0, 0, 0, 1, 0]]), torch.tensor([[0.25, 0.1]])).tolist()
    [[[0.25, 1.100000023841858]]]
    """
    x, y = points.unbind(-1)
    phi = []
    for here in COLUMNS:
        others = [other for other in COLUMNS if other != here]
        phi.append(math.prod(((x - other) / (here - other) for other in others), start=1.0 + 0 * x))
    cubic = torch.stack(phi)
    below, above = (HEIGHT - y) / (2 * HEIGHT), (HEIGHT + y) / (2 * HEIGHT)
    basis = torch.cat((cubic * below, cubic.flip(0) * above))
    moved = y + theta @ basis
    return torch.stack((x.expand_as(moved), moved), -1)


def _ratio(sum_of_powers: float, count: int) -> float:
    """Return r with 1 + r + ... + r^(count-1) as given, by bisection."""
    low, high = 0.0, max(2.0, sum_of_powers)
    for _ in range(200):
        middle = (low + high) / 2
        short = sum(middle**k for k in range(count)) < sum_of_powers
        low, high = (middle, high) if short else (low, middle)
    return (low + high) / 2


def geometric(count: int, first: float) -> Float[Tensor, " points"]:
    """Divide [0, 1] into `count` steps that start with `first` and grow by a constant factor.

    Where that factor exceeds 1.02, three quarters of the points grow by 1.02 and the rest faster.
    On meshes so coarse that these would more than double each time, one factor serves all.

    >>> geometric(3, 1 / 7).mul(7).tolist()
    [0.0, 1.0, 3.0..., 7.0]
    """
    near = 3 * (count + 1) // 4 - 1  # of count + 1 points
    slow = first * GROWTH ** np.arange(near + 1)
    steps = first * _ratio(1 / first, count) ** np.arange(count)
    if steps[1] > GROWTH * steps[0]:
        faster = _ratio((1 - slow[:-1].sum()) / slow[-1], count - near)
        if faster <= STEEPEST:
            steps = np.concatenate((slow[:-1], slow[-1] * faster ** np.arange(count - near)))
    points = np.concatenate(([0.0], np.cumsum(steps)))
    points[-1] = 1.0
    return torch.from_numpy(points)


def c_mesh(
    theta: Float[Tensor, "batch parameters"], cells: Cells = PUBLISHED
) -> Float[Tensor, "batch along out 2"]:
    """Return the nodes around the airfoils of theta, in float64 on its device.

    Nodes lie on straight lines from the airfoil or the cut to the outer boundary, a half circle
    of radius 40 followed by y = 40 and y = -40 downstream.
    """
    if theta.shape != (len(theta), PARAMETERS):
        raise ShapeError(f"airfoils need theta (batch, {PARAMETERS}), got {tuple(theta.shape)}")
    if not theta.isfinite().all():
        which = (~theta.isfinite()).any(1).nonzero().flatten().tolist()
        raise DataError(
            f"shape parameters must be finite; {len(which)} of {len(theta)} samples are not, "
            f"the first at batch index {which[0]}"
        )
    base = profile(cells.around)
    behind = geometric(cells.wake, float((base[0] - base[1]).norm()) / (FAR - 1)).to(theta.device)
    # At the wall cells are about as high as they are long.
    out = geometric(cells.out, 2 / cells.around / FAR).to(theta.device)

    airfoil = morph(theta.double(), base.to(theta.device))
    outlet = torch.tensor([FAR, 0.0], dtype=torch.float64, device=theta.device)
    cut = torch.lerp(airfoil[:, :1], outlet, behind[1:, None])
    inner = torch.cat((cut.flip(1), airfoil, cut), 1)

    straight = torch.linspace(1, FAR, cells.wake + 1, dtype=torch.float64)[1:]
    angle = torch.linspace(math.pi / 2, 3 * math.pi / 2, cells.around + 1, dtype=torch.float64)
    upper = torch.stack((straight, torch.full_like(straight, FAR)), -1)
    arc = torch.stack((1 + FAR * angle.cos(), FAR * angle.sin()), -1)
    outer = torch.cat((upper.flip(0), arc, upper * torch.tensor([1, -1])))
    return torch.lerp(inner[:, :, None], outer.to(theta.device)[:, None], out[:, None])
