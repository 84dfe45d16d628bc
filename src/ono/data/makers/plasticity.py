"""Plasticity: a die that is driven into a metal block -> positions and displacements in time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ono.data.info import Array, Channel, Info, Mesh, Provenance
from ono.data.plan import Plan, Rows, Solved, Splits

TIMES = 0.1 * np.arange(20)  # ms
DIE = 101  # heights that make a die
RIGHT, TOP, WIDTH, HEIGHT = 0.35, 14.9, 50.0, 15.0  # mm


def plan_plasticity(
    settings: Mapping[str, int], seed: int, splits: Splits, provenance: Provenance
) -> Plan:
    """Plan the forging: `nodes_x` x `nodes_y` nodes, from the right to the left, from the top down.

    `draws` keep the die as the published file does, from left to right: against the order of the
    nodes. `inputs` are aligned by x: a node is told the height of the die above it.
    """
    across, down = settings["nodes_x"], settings["nodes_y"]
    points, stride = across * down, (DIE - 1) // (across - 1)
    x = RIGHT - WIDTH * np.arange(across) / (across - 1)
    y = TOP - HEIGHT * np.arange(down) / (down - 1)
    coords = np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2).astype("<f4")

    def draw(index: int, attempt: int) -> Mapping[str, Array]:
        from ono.physics import die

        heights = die.die_heights(seed, index, attempt)
        above = np.repeat(heights[::-stride], down)
        return {"draws": heights, "inputs": above[:, None]}

    def solve(batch: Mapping[str, Array], device: str) -> Solved:
        import torch

        from ono.physics import plasticity

        heights = torch.from_numpy(batch["draws"]).to(device)
        solution = plasticity.solve(heights, nodes=(across, down))
        u = solution.displacement.flatten(2, 3).contiguous().cpu().numpy()
        outputs = np.empty((*u.shape[:-1], 4), "<f4")
        np.add(coords, u, out=outputs[..., :2])
        outputs[..., 2:] = u
        return Solved(
            {"outputs": outputs},
            converged=solution.converged.cpu().numpy(),
            residual=solution.residual.cpu().numpy(),
            iterations=solution.iterations.cpu().numpy(),
        )

    info = Info(
        name="plasticity",
        task="timed",
        mesh=Mesh(kind="structured", dim=2, shape=(across, down), shared=True),
        inputs=(Channel(name="die height", unit="mm"),),
        outputs=tuple(Channel(name=name, unit="mm") for name in ("x", "y", "u_x", "u_y")),
        samples=max(stop for _, stop in splits.values()),
        splits=splits,
        provenance=provenance,
    )
    return Plan(
        info,
        fixed={"coords": coords, "times": TIMES.astype("<f4")},
        filled={
            "inputs": Rows((points, 1)),
            "draws": Rows((DIE,), "<f8"),
            "outputs": Rows((len(TIMES), points, 4)),
        },
        draw=draw,
        solve=solve,
        batch=50,
        cuda_batch=1000,
    )
