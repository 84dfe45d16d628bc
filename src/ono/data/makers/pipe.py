"""Pipe: the nodes of a curved pipe -> the flow through it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ono.data.info import Array, Channel, Info, Mesh, Provenance
from ono.data.plan import Plan, Rows, Solved, Splits


def plan_pipe(
    settings: Mapping[str, int], seed: int, splits: Splits, provenance: Provenance
) -> Plan:
    """Plan the pipe on `nodes`² points: their place is all the model is told.

    The first index runs along the pipe from the inlet, the second across it from the lower wall.
    `draws` are d_1 ... d_4, s_0 ... s_4 of the centre line.
    """
    nodes = settings["nodes"]
    samples = max(stop for _, stop in splits.values())

    def draw(index: int, attempt: int) -> Mapping[str, Array]:
        from ono.physics import pipe

        return {"draws": pipe.centre_numbers(seed, index, attempt)}

    def solve(batch: Mapping[str, Array], device: str) -> Solved:
        import torch

        from ono.physics import pipe

        solution = pipe.solve(torch.from_numpy(batch["draws"]).to(device), nodes=nodes)
        outputs = torch.cat((solution.velocity, solution.pressure[..., None]), -1)
        return Solved(
            {
                "coords": solution.points.flatten(1, 2).cpu().numpy(),
                "outputs": outputs.flatten(1, 2).cpu().numpy(),
            },
            converged=solution.converged.cpu().numpy(),
            residual=solution.residual.cpu().numpy(),
            iterations=solution.iterations.cpu().numpy(),
        )

    info = Info(
        name="pipe",
        task="steady",
        mesh=Mesh(kind="structured", dim=2, shape=(nodes, nodes), shared=False),
        outputs=(
            Channel(name="velocity x"),
            Channel(name="velocity y"),
            Channel(name="pressure"),
        ),
        samples=samples,
        splits=splits,
        provenance=provenance,
    )
    return Plan(
        info,
        fixed={"inputs": np.zeros((samples, nodes**2, 0), "<f4")},
        filled={
            "coords": Rows((nodes**2, 2)),
            "outputs": Rows((nodes**2, 3)),
            "draws": Rows((9,), "<f8"),
        },
        draw=draw,
        solve=solve,
        batch=8,
    )
