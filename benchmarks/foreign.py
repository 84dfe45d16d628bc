"""Bring foreign data of every kind to a trained operator by commands alone.

OMP_NUM_THREADS=2 python benchmarks/foreign.py --lines benchmarks/results/foreign.jsonl

Four files as others write them: a grid in .npz, a point cloud in .h5, a folder of .vtu meshes of
different sizes, and parameters with a field in .mat. Each is imported, trained and predicted with
the commands that are printed; the recipe is the derived one with fewer epochs.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import meshio
import numpy as np
from lines import keep
from numpy.typing import NDArray
from scipy.io import savemat
from scipy.spatial import Delaunay

SAMPLES, MODES = 200, 4
KINDS = {
    "grid": (
        "--inputs plate.npz:source --outputs plate.npz:potential",
        "--inputs plate.npz:source --out predicted.npz",
    ),
    "point cloud": (
        "--coords part.h5:nodes --inputs part.h5:load --outputs part.h5:deflection",
        "--data DATA --out predicted.h5",
    ),
    "ragged VTU folder": (
        "--from meshes --inputs heat --outputs temperature",
        "--from meshes --out predicted",
    ),
    "parameters to field": (
        "--params study.mat:parameters --outputs study.mat:field",
        "--params study.mat:parameters --out predicted.mat",
    ),
}

Array = NDArray[np.float64]


def poisson(amplitudes: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Return a source of cosines and the u with u - Lap u / pi² = source."""
    source, answer = np.zeros_like(x), np.zeros_like(x)
    for i in range(MODES):
        for j in range(MODES):
            mode = amplitudes[i, j] * np.cos(np.pi * i * x) * np.cos(np.pi * j * y)
            source += mode
            answer += mode / (1 + i * i + j * j)
    return source, answer


def write(folder: Path) -> None:
    """Write the four kinds of files."""
    random = np.random.default_rng(0)
    amplitudes = random.standard_normal((SAMPLES, MODES, MODES))
    x, y = np.meshgrid(np.linspace(0, 1, 24), np.linspace(0, 1, 24), indexing="ij")
    fields = np.array([poisson(a, x, y) for a in amplitudes])
    np.savez(folder / "plate.npz", source=fields[:, 0], potential=fields[:, 1])

    nodes = random.random((SAMPLES, 300, 2))
    pairs = zip(amplitudes, nodes, strict=True)
    fields = np.array([poisson(a, p[:, 0], p[:, 1]) for a, p in pairs])
    with h5py.File(folder / "part.h5", "w") as file:
        file["nodes"], file["load"], file["deflection"] = nodes, fields[:, 0], fields[:, 1]

    (folder / "meshes").mkdir()
    for index, a in enumerate(amplitudes):
        corners = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
        points = np.concatenate((corners, random.random((random.integers(150, 300), 2))))
        heat, temperature = poisson(a, points[:, 0], points[:, 1])
        meshio.Mesh(
            np.pad(points, ((0, 0), (0, 1))),
            [("triangle", Delaunay(points).simplices)],
            point_data={"heat": heat, "temperature": temperature},
        ).write(folder / "meshes" / f"case{index}.vtu")

    numbers = random.random((SAMPLES, 3))
    left, up, width = (numbers[:, k, None, None] for k in range(3))
    field = np.exp(-((x - left) ** 2 + (y - up) ** 2) / (0.05 + 0.1 * width))
    savemat(folder / "study.mat", {"parameters": numbers, "field": field})


def ono(folder: Path, words: str) -> str:
    """Run a command as a user would."""
    print(f"$ ono {words}", flush=True)
    command = [sys.executable, "-m", "ono", *shlex.split(words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def measure(kind: str, folder: Path, epochs: int, commit: str) -> dict[str, Any]:
    """Import, check, train and predict one kind; return its line of the table."""
    source, asked = KINDS[kind]
    name = kind.split()[0]
    ono(folder, f"data import {source} --out data/{name}")
    ono(folder, f"data check data/{name}")
    began = time.perf_counter()
    changes = f"train.epochs={epochs} train.validate_every={epochs} train.device=cpu"
    ono(folder, f"train data/{name} {changes} --out runs/{name}")
    seconds = time.perf_counter() - began
    ono(folder, f"predict runs/{name} {asked.replace('DATA', f'data/{name}')}")
    result = json.loads((folder / "runs" / name / "result.json").read_text())
    return {
        "kind": kind,
        "import": f"`ono data import {source}`",
        "epochs": epochs,
        "trained in s": round(seconds),
        "test error": round(result["test"], 4),
        "commit": commit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        write(Path(place))
        for kind in KINDS:
            line = measure(kind, Path(place), args.epochs, args.commit)
            keep(line, args.lines)


if __name__ == "__main__":
    main()
