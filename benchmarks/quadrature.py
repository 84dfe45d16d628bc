"""Train on a coarse grid with equal and with trapezoidal weights, and evaluate on others.

python benchmarks/quadrature.py data.path=data/darcy-quick --out quadrature.txt
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from ono.device import choose_device, describe_device
from ono.evaluate.predict import scattered_points
from ono.train.evaluations import Evaluator
from ono.train.loop import fit
from ono.train.recipe import Recipe
from ono.train.run import commit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--resolutions", type=int, nargs="+", default=[22, 29, 43, 85])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--commit", default=commit(), help="where the source has no history")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    command = " ".join(["benchmarks/quadrature.py", *given.overrides])
    heads = "  ".join(f"{nodes:>6}²" for nodes in given.resolutions)
    lines = [
        f"command  {command}",
        f"commit   {given.commit}    device  {describe_device(choose_device('auto'))}",
        "test relative L2; trained at 29²; the last column is 2000 scattered query points",
        "",
        f"measure   seed  {heads}   queries",
    ]
    for seed in range(given.seeds):
        for measure in ("mean", "weights"):
            changes = [f"model.eigen.measure={measure}", f"seed={seed}", *given.overrides]
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder) / "run"
                fit(Recipe.load("darcy/ono-quick", changes), run)
                evaluator = Evaluator(run)
                rows = [evaluator.on_grid(nodes) for nodes in given.resolutions]
                points = scattered_points(evaluator.operator, 2000).numpy()
                rows.append(evaluator.at_points(points))
            errors = "  ".join(f"{row.mean:7.4f}" for row in rows)
            lines.append(f"{measure:8s}  {seed:4d}  {errors}")
            print(lines[-1], flush=True)
    given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
