"""One small learning problem of each kind: four samples of four numbers, inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ono.domain import Domain
from ono.problem import Problem

SHAPE = (10, 9)
POINTS = 90
SAMPLES = 4
TIMES = (0.0, 1.0)


@dataclass(frozen=True)
class Case:
    """What a model is built for, what it is given, and what it should answer."""

    problem: Problem
    domain: Domain
    values: Tensor
    target: Tensor
    time: Tensor | None = None

    def double(self) -> Case:
        """Return the case in float64."""
        domain, time = self.domain, self.time
        wide = Domain(
            domain.coords.double(),
            domain.shape,
            None if domain.weights is None else domain.weights.double(),
            domain.mask,
        )
        return replace(
            self,
            domain=wide,
            values=self.values.double(),
            target=self.target.double(),
            time=None if time is None else time.double(),
        )

    def sample(self, index: int) -> Case:
        """Return one sample alone, without its padding."""
        real = slice(None) if self.domain.mask is None else self.domain.mask[index]
        weights = self.domain.weights
        domain = Domain(
            self.domain.coords[index][real][None],
            self.domain.shape,
            None if weights is None else weights[index][real][None],
        )
        return replace(
            self,
            domain=domain,
            values=self.values[index][real][None],
            target=self.target[index][..., real, :][None],
            time=None if self.time is None else self.time[index][None],
        )


def grid(shape: tuple[int, ...] = SHAPE) -> Case:
    """Return a field on a uniform grid -> its damped modes, as Darcy flow."""
    domain = Domain.grid(shape, batch=SAMPLES)
    a, u = _fields(domain.coords)
    return Case(Problem.grid(shape, in_channels=1, out_channels=1), domain, a, u)


def structured() -> Case:
    """Return the shape of a mesh -> a field on it, without input channels, as the pipe."""
    coords = _bent(Domain.grid(SHAPE, batch=SAMPLES).coords)
    problem = Problem.grid(SHAPE, in_channels=0, out_channels=2, kind="structured")
    u = _fields(coords)[1]
    return Case(problem, Domain(coords, SHAPE), u[..., :0], torch.cat((u, coords[..., :1] - u), -1))


def cloud() -> Case:
    """Return the place of points -> a field there, without input channels, as elasticity."""
    coords = _bent(torch.rand(1, 40, 2, generator=torch.Generator().manual_seed(2)))
    problem = Problem(dim=2, in_channels=0, out_channels=1, points=40)
    u = _fields(coords)[1]
    return Case(problem, Domain(coords), u[..., :0], u)


def ragged() -> Case:
    """Return a field at points whose number differs between samples -> another field."""
    random = torch.Generator().manual_seed(3)
    coords = torch.rand(SAMPLES, 40, 2, generator=random)
    mask = torch.arange(40) < torch.tensor([40, 31, 25, 36])[:, None]
    a, u = _fields(coords)
    hidden = ~mask[..., None]
    return Case(
        Problem(dim=2, in_channels=1, out_channels=1),
        Domain(coords.masked_fill(hidden, 0), mask=mask),
        a.masked_fill(hidden, 0),
        u.masked_fill(hidden, 0),
    )


def timed() -> Case:
    """Return a field on a mesh -> the field at two times, as plasticity."""
    coords = Domain.grid(SHAPE, batch=SAMPLES).coords
    a, u = _fields(coords)
    problem = Problem.grid(SHAPE, in_channels=1, out_channels=1, timed=True, kind="structured")
    time = torch.tensor(TIMES).expand(SAMPLES, -1)
    moments = time[..., None, None]
    later = (1 - moments) * a[:, None] + moments * u[:, None]
    return Case(problem, Domain(coords, SHAPE), a, later, time)


CASES: dict[str, Callable[[], Case]] = {
    "grid": grid,
    "structured": structured,
    "cloud": cloud,
    "ragged": ragged,
    "timed": timed,
}


def _fields(coords: Tensor) -> tuple[Tensor, Tensor]:
    """Return an input of three modes a sample, and an output that turns and damps them."""
    x, y = coords[..., :1], coords[..., 1:]
    c = _numbers()
    a = c[0] + c[1] * (math.pi * x).cos() + c[2] * (math.pi * y).cos()
    u = (1 + c[1]) * (math.pi * x).sin() * y + c[0] * x * (1 - x) + 0.5 * c[2] * y
    return a, u


def _bent(coords: Tensor) -> Tensor:
    """Return coordinates that tell the numbers of each sample."""
    x, y = coords[..., :1], coords[..., 1:]
    c = _numbers()
    bent = torch.cat((x + 0.3 * c[0] * y * y, y + 0.3 * c[1] * (math.pi * x).sin()), -1)
    return bent + 0.3 * c[2]


def _numbers() -> Tensor:
    """Return three numbers of each sample, [3 batch 1 1]."""
    return torch.randn(3, SAMPLES, 1, 1, generator=torch.Generator().manual_seed(1))
