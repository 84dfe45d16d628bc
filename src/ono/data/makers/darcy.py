"""Darcy flow: permeability -> pressure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ono.data.info import Array, Channel, Info, Mesh, Provenance
from ono.data.plan import Plan, Rows, Solved, Splits


def plan_darcy(
    settings: Mapping[str, int], seed: int, splits: Splits, provenance: Provenance
) -> Plan:
    """Plan Darcy flow: permeability -> pressure at the nodes (x_i, y_j), j fastest."""
    nodes = settings["nodes"]
    line = np.arange(nodes) / (nodes - 1)
    coords = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)

    def draw(index: int, attempt: int) -> Mapping[str, Array]:
        from ono.physics import darcy

        field = darcy.coefficient(seed, index, attempt, nodes=nodes)
        return {"inputs": field.reshape(-1, 1)}

    def solve(batch: Mapping[str, Array], device: str) -> Solved:
        import torch

        from ono.physics import darcy

        fields = torch.from_numpy(batch["inputs"]).reshape(-1, nodes, nodes)
        solution = darcy.solve(fields.to(device, torch.float64))
        outputs = solution.field.reshape(len(fields), -1, 1).float().cpu().numpy()
        return Solved(
            {"outputs": outputs},
            converged=solution.converged.cpu().numpy(),
            residual=solution.residual.cpu().numpy(),
            iterations=solution.iterations.cpu().numpy(),
        )

    info = Info(
        name="darcy",
        task="steady",
        mesh=Mesh(kind="grid", dim=2, shape=(nodes, nodes), shared=True),
        inputs=(Channel(name="permeability"),),
        outputs=(Channel(name="pressure"),),
        samples=max(stop for _, stop in splits.values()),
        splits=splits,
        provenance=provenance,
    )
    return Plan(
        info,
        fixed={"coords": coords.astype("<f4")},
        filled={"inputs": Rows((nodes**2, 1)), "outputs": Rows((nodes**2, 1))},
        draw=draw,
        solve=solve,
        # Fine grids are solved one by one on a CPU: small chunks have the same bits, and can stop.
        batch=64 if nodes < 256 else 8,
    )
