"""Navier-Stokes: frames of the vorticity on the torus at t = 1 ... 20.

The first frames are what a roll-out starts from. The field at t = 0 is kept among the draws.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ono.data.info import Array, Channel, Info, Mesh, Provenance
from ono.data.plan import Plan, Rows, Solved, Splits

TIMES = np.arange(1.0, 21.0)


def plan_navier_stokes(
    settings: Mapping[str, int], seed: int, splits: Splits, provenance: Provenance
) -> Plan:
    """Plan the flow: solved on `nodes`², stored on every `stride`-th node of each axis.

    The coordinates are i/n: the node at 1 is the node at 0.
    """
    nodes, stride = settings["nodes"], settings["stride"]
    side = nodes // stride
    line = np.arange(side) / side
    coords = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    samples = max(stop for _, stop in splits.values())

    def draw(index: int, attempt: int) -> Mapping[str, Array]:
        from ono.physics import navier_stokes

        field = navier_stokes.initial_vorticity(seed, index, attempt, nodes=nodes)
        return {"vorticity": field, "draws": field[::stride, ::stride].ravel()}

    def solve(batch: Mapping[str, Array], device: str) -> Solved:
        import torch

        from ono.physics import navier_stokes

        start = torch.from_numpy(batch["vorticity"]).to(device, torch.float32)
        solution = navier_stokes.solve(start, times=TIMES.tolist())
        frames = solution.frames[..., ::stride, ::stride].flatten(-2)[..., None]
        return Solved(
            {"outputs": frames.cpu().numpy()},
            converged=solution.converged.cpu().numpy(),
            residual=solution.residual.cpu().numpy(),
            iterations=solution.steps.cpu().numpy(),
        )

    info = Info(
        name="ns2d",
        task="rollout",
        mesh=Mesh(kind="grid", dim=2, shape=(side, side), shared=True, periodic=True),
        outputs=(Channel(name="vorticity"),),
        samples=samples,
        splits=splits,
        provenance=provenance,
    )
    return Plan(
        info,
        fixed={
            "coords": coords.astype("<f4"),
            "times": TIMES.astype("<f4"),
            "inputs": np.zeros((samples, side**2, 0), "<f4"),
        },
        filled={"draws": Rows((side**2,)), "outputs": Rows((len(TIMES), side**2, 1))},
        draw=draw,
        solve=solve,
        # Fine grids are solved one by one on a CPU: small chunks have the same bits, and can stop.
        batch=16 if nodes < 256 else 1,
        cuda_batch=128,
    )
