"""Elasticity: a unit cell with a void -> stress at points that follow the void."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ono.data.info import Array, Channel, Info, Mesh, Provenance
from ono.data.plan import Plan, Rows, Solved, Splits
from ono.errors import DataError, InputError

POINTS, PARAMETERS = 972, 10


def plan_elasticity(
    settings: Mapping[str, int], seed: int, splits: Splits, provenance: Provenance
) -> Plan:
    """Plan the unit cell: the place of the points is all the model is told."""

    def draw(index: int, attempt: int) -> Mapping[str, Array]:
        from ono.physics import elasticity

        return {"draws": elasticity.void_parameters(seed, index, attempt)}

    return _plan(splits, provenance, draw)


@dataclass(frozen=True, slots=True)
class Voids:
    """Voids that someone published: their parameters, and the hash of the file they came in."""

    theta: Array
    sha256: str

    @classmethod
    def read(cls, file: Path) -> Voids:
        """Read a `.npy` file of [voids 10] numbers, such as Random_UnitCell_theta_10.npy."""
        try:
            content = file.read_bytes()
            theta = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise DataError(f"{file} is not a .npy file of numbers: {error}") from None
        if theta.ndim != 2 or theta.shape[1] != PARAMETERS or theta.dtype.kind not in "fiu":
            raise DataError(
                f"{file} holds {theta.dtype} {list(theta.shape)}; the parameters of published "
                f"voids are numbers [2000, {PARAMETERS}] (Random_UnitCell_theta_10.npy)"
            )
        bad = np.flatnonzero(~np.isfinite(theta).all(1))
        if len(bad):
            raise DataError(f"{file} is not finite in {len(bad)} rows, the first is {bad[0]}")
        return cls(theta.astype(np.float64), hashlib.sha256(content).hexdigest())

    def plan(
        self, settings: Mapping[str, int], seed: int, splits: Splits, provenance: Provenance
    ) -> Plan:
        """Plan the unit cell for these voids: sample i is row i, nothing is drawn."""
        samples = max(stop for _, stop in splits.values())
        if samples > len(self.theta):
            raise InputError(
                f"{samples} samples were asked for, the geometry file has {len(self.theta)} voids; "
                "give fewer --samples"
            )
        known = {**provenance.settings, "geometry": self.sha256}

        def draw(index: int, attempt: int) -> Mapping[str, Array]:
            if attempt:
                raise DataError(f"void {index} was not solved; what is published is not redrawn")
            return {"draws": self.theta[index]}

        return _plan(splits, provenance.model_copy(update={"seed": None, "settings": known}), draw)


def _plan(
    splits: Splits, provenance: Provenance, draw: Callable[[int, int], Mapping[str, Array]]
) -> Plan:
    samples = max(stop for _, stop in splits.values())

    def solve(batch: Mapping[str, Array], device: str) -> Solved:
        import torch

        from ono.physics import elasticity

        solution = elasticity.solve(torch.from_numpy(batch["draws"]).to(device))
        return Solved(
            {
                "coords": solution.points.cpu().numpy(),
                "outputs": solution.stress[..., None].cpu().numpy(),
            },
            converged=solution.converged.cpu().numpy(),
            residual=solution.residual.cpu().numpy(),
            iterations=solution.iterations.cpu().numpy(),
        )

    info = Info(
        name="elasticity",
        task="steady",
        mesh=Mesh(kind="cloud", dim=2, shared=False),
        outputs=(Channel(name="von Mises stress"),),
        samples=samples,
        splits=splits,
        provenance=provenance,
    )
    return Plan(
        info,
        fixed={"inputs": np.zeros((samples, POINTS, 0), "<f4")},
        filled={
            "coords": Rows((POINTS, 2)),
            "outputs": Rows((POINTS, 1)),
            "draws": Rows((PARAMETERS,), "<f8"),
        },
        draw=draw,
        solve=solve,
        batch=16,
    )
