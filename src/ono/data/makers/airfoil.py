"""Airfoil: the nodes of a C-mesh -> transonic flow at the nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ono.data.info import Array, Channel, Info, Mesh, Provenance
from ono.data.plan import Plan, Rows, Solved, Splits

FIELDS = ("density", "velocity x", "velocity y", "pressure", "Mach number")


def plan_airfoil(
    settings: Mapping[str, int], seed: int, splits: Splits, provenance: Provenance
) -> Plan:
    """Plan flows past airfoils: the mesh is all the model is told; i is slowest, then j."""
    samples = max(stop for _, stop in splits.values())
    shape = (2 * settings["wake"] + settings["around"] + 1, settings["out"] + 1)
    points = shape[0] * shape[1]

    def draw(index: int, attempt: int) -> Mapping[str, Array]:
        from ono.physics import c_mesh

        return {"draws": c_mesh.shape_parameters(seed, index, attempt)}

    def solve(batch: Mapping[str, Array], device: str) -> Solved:
        import torch

        from ono.physics import airfoil
        from ono.physics.c_mesh import Cells

        theta = torch.from_numpy(batch["draws"]).to(device)
        solution = airfoil.solve(theta, cells=Cells(**settings))
        return Solved(
            {
                "coords": solution.nodes.flatten(1, 2).cpu().numpy(),
                "outputs": solution.flow.flatten(1, 2).cpu().numpy(),
            },
            converged=solution.converged.cpu().numpy(),
            residual=solution.residual.cpu().numpy(),
            iterations=solution.iterations.cpu().numpy(),
        )

    info = Info(
        name="airfoil",
        task="steady",
        mesh=Mesh(kind="structured", dim=2, shape=shape, shared=False),
        outputs=tuple(Channel(name=name) for name in FIELDS),
        samples=samples,
        splits=splits,
        provenance=provenance,
    )
    return Plan(
        info,
        fixed={"inputs": np.zeros((samples, points, 0), "<f4")},
        filled={
            "coords": Rows((points, 2)),
            "outputs": Rows((points, len(FIELDS))),
            "draws": Rows((8,), "<f8"),
        },
        draw=draw,
        solve=solve,
        # Fine meshes are solved one by one on a CPU: small chunks have the same bits, and can stop.
        batch=16 if points < 8192 else 1,
        cuda_batch=650,
    )
