"""Elasticity: a unit cell with a void -> stress at points that follow the void."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ono.data.info import Array, Channel, Info, Mesh, Provenance
from ono.data.plan import Plan, Rows, Solved, Splits

POINTS = 972


def plan_elasticity(
    settings: Mapping[str, int], seed: int, splits: Splits, provenance: Provenance
) -> Plan:
    """Plan the unit cell: the place of the points is all the model is told."""
    samples = max(stop for _, stop in splits.values())

    def draw(index: int, attempt: int) -> Mapping[str, Array]:
        from ono.physics import elasticity

        return {"draws": elasticity.void_parameters(seed, index, attempt)}

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
            "draws": Rows((10,), "<f8"),
        },
        draw=draw,
        solve=solve,
        batch=16,
    )
