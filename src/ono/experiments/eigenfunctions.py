"""Does a layer of orthogonal attention find the eigenfunctions of a known operator?

The appendix (Eqs. 16-19) says: one linear layer, trained on white inputs to reproduce a positive
operator, recovers its leading eigenfunctions. Here the operator is the solution operator of
u - l² u″ = h, whose eigenpairs are known: cosines of i half waves with 1 / (1 + (l π i)²) between
insulated ends, and full waves in pairs on a circle. Other cases break one assumption each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from ono.data.info import Array
from ono.errors import DataError, InputError, nearest
from ono.files import replacing
from ono.nn.eigen_options import EigenOptions
from ono.nn.measure import Measure
from ono.nn.orthogonal_attention import OrthogonalAttention, paper_form

CASES = ("white", "coloured", "indefinite", "repeated")
POINTS, LENGTH, BATCH = 64, 0.2, 64


@dataclass(frozen=True, slots=True)
class Operator:
    """A known operator: orthonormal functions [points modes], eigenvalues, input energies."""

    functions: Tensor
    eigenvalues: Tensor
    energies: Tensor

    def inputs(self, count: int, generator: torch.Generator) -> Float[Tensor, "points count"]:
        """Draw input functions; white ones have as much of every mode."""
        shape = (len(self.energies), count)
        parts = torch.randn(shape, generator=generator, dtype=torch.float64)
        return self.functions @ (self.energies.sqrt()[:, None] * parts)

    def apply(self, h: Float[Tensor, "points count"]) -> Float[Tensor, "points count"]:
        """Return K h, with the mean over points as inner product."""
        parts = self.functions.mT @ h / len(self.functions)
        return self.functions @ (self.eigenvalues[:, None] * parts)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Learned and true eigenpairs, largest eigenvalue first; functions are [modes points]."""

    case: str
    x: Array
    learned: Array
    true: Array
    learned_values: Array
    true_values: Array

    @property
    def span(self) -> float:
        """The largest principal angle between the learned and the leading eigenspace, degrees."""
        overlap = self.learned @ self.true.T / len(self.x)
        return _degrees(float(np.linalg.svd(overlap, compute_uv=False).min()))

    @property
    def functions(self) -> float:
        """The largest angle between a learned function and the true one of its rank, degrees."""
        overlap = (self.learned * self.true).mean(1)
        return _degrees(float(np.abs(overlap).min()))

    @property
    def eigenvalues(self) -> float:
        """The largest relative error of an eigenvalue."""
        return float(np.abs(self.learned_values / self.true_values - 1).max())

    def save(self, path: Path) -> None:
        """Keep the functions for pictures."""
        names = ("x", "learned", "true", "learned_values", "true_values")
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in names}
        with replacing(path) as aside:
            aside.write_bytes(save(arrays))

    @classmethod
    def load(cls, case: str, path: Path) -> Recovery:
        """Read what was kept."""
        try:
            return cls(case, **load_file(path))
        except (OSError, SafetensorError, TypeError) as error:
            raise DataError(
                f"{path} does not hold eigenfunctions ({error}); delete it, or restore the file"
            ) from None


def _degrees(cosine: float) -> float:
    return math.degrees(math.acos(min(1.0, cosine)))


def known_operator(case: str) -> Operator:
    """Return the operator of a case."""
    if case not in CASES:
        raise InputError(f"no case is called {case!r}; {nearest(case, CASES)}")
    x = (torch.arange(POINTS, dtype=torch.float64) + 0.5) / POINTS
    number = torch.arange(POINTS - 1, dtype=torch.float64)
    if case == "repeated":  # waves 0, 1, 1, 2, 2 ... around the circle
        waves = 2 * torch.div(number + 1, 2, rounding_mode="floor")
        phase = (number % 2 == 0).double() * (math.pi / 2)
        functions = torch.sin(math.pi * waves * x[:, None] + phase)
    else:
        waves = number
        functions = torch.cos(math.pi * waves * x[:, None])
    functions = functions / functions.square().mean(0).sqrt()
    eigenvalues = 1 / (1 + (LENGTH * math.pi * waves) ** 2)
    energies = torch.ones_like(eigenvalues)
    if case == "coloured":
        energies[4:8] = 100.0
    if case == "indefinite":
        eigenvalues[1] = -eigenvalues[1]
    return Operator(functions, eigenvalues, energies)


def recover(case: str, *, steps: int, seed: int = 0) -> Recovery:
    """Train one layer on a case and compare its eigenpairs with the true ones.

    The features of a point are its place in a table, so that any function can be learned. All
    input functions live on the same points, so they can be channels of one sample.
    """
    operator = known_operator(case)
    kept = 3 if case == "repeated" else 4
    generator = torch.Generator().manual_seed(seed)
    options = EigenOptions(functions=kept, heads=1, bias=False, value_projection=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = OrthogonalAttention(BATCH, POINTS, options).double()
    table = torch.eye(POINTS, dtype=torch.float64)[None]
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        h = operator.inputs(BATCH, generator)
        out = paper_form(layer, table, h[None], Measure())
        loss = (out[0] - operator.apply(h)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return _compare(case, layer, operator, kept)


@torch.no_grad()
def _compare(case: str, layer: OrthogonalAttention, operator: Operator, kept: int) -> Recovery:
    table = torch.eye(POINTS, dtype=torch.float64)[None]
    learned = layer.eigenfunctions(table, Measure())[0, :, 0]
    order = layer.mu[0].argsort(descending=True)
    # Leading by size, as for any operator that a few modes approximate best.
    leading = operator.eigenvalues.abs().argsort(descending=True, stable=True)[:kept]
    true = operator.functions[:, leading]
    learned = learned[:, order]
    sign = (learned * true).mean(0).sign()
    return Recovery(
        case,
        ((torch.arange(POINTS) + 0.5) / POINTS).numpy(),
        (learned * torch.where(sign == 0, 1.0, sign)).T.numpy(),
        true.T.numpy(),
        layer.mu[0][order].double().numpy(),
        operator.eigenvalues[leading].numpy(),
    )
