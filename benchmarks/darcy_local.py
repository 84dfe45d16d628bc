"""Ask whether ONO on Darcy flow lacks what is around a point.

OMP_NUM_THREADS=1 python benchmarks/darcy_local.py --lines benchmarks/results/darcy_local.jsonl

Trains the quick recipes of ONO, Galerkin Transformer and F-FNO on the same 600 samples of 29 × 29
nodes, ONO with two 3 × 3 convolutions behind each of its encoders, ONO that is told its
surroundings, and ONO with Nyström attention, without and with the convolution along the numbering
of the nodes that the released code has. Every training takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from unittest.mock import patch

from lines import keep
from torch import Tensor, nn

from ono.data.benchmarks import benchmark
from ono.data.generate import make
from ono.device import describe_device
from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.problem import Problem
from ono.train.loop import fit
from ono.train.recipe import Recipe

SIDE = 29
NYSTROM = ["darcy/ono-quick", "model.lower.attention=nystrom", "model.lower.landmarks=64"]
MODELS = {
    "ono": ["darcy/ono-quick"],
    "ono, convolutions behind its encoders": ["darcy/ono-quick"],
    "ono, `model.surroundings=32`": ["darcy/ono-quick", "model.surroundings=32"],
    "ono, nystrom": NYSTROM,
    "ono, nystrom, index convolution": [*NYSTROM, "model.lower.index_convolution=true"],
    "galerkin": ["darcy/galerkin-quick"],
    "f-fno": ["darcy/f-fno-quick"],
}


class Local(nn.Module):
    """x + GELU of a 3 × 3 convolution of LN(x) on the grid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.convolution = nn.Conv2d(width, width, 3, padding=1, padding_mode="replicate")

    def forward(self, x: Tensor) -> Tensor:
        """Add what is around each node."""
        grid = self.norm(x).mT.unflatten(-1, (SIDE, SIDE))
        return x + nn.functional.gelu(self.convolution(grid)).flatten(2).mT


class LocalONO(ONO):
    """ONO whose encoders end with local layers."""

    def __init__(self, config: ONOConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        for encoder in (self.encoder_g, self.encoder_h):
            encoder.extend([Local(config.width), Local(config.width)])


def test_error(name: str, data: Path, epochs: int, run: Path) -> float:
    """Train once; return the test error."""
    source, *own = MODELS[name]
    changes = [f"data.path={data}", "train.device=cpu", f"train.epochs={epochs}", *own]
    recipe = Recipe.load(source, [*changes, f"train.validate_every={epochs}"])
    with patch("ono.models.ono.ONO", LocalONO if "behind" in name else ONO):
        return fit(recipe, run).test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(benchmark("darcy"), Path(folder) / "darcy", size="quick", device="cpu")
        for name in args.models:
            error = test_error(name, Path(folder) / "darcy", args.epochs, Path(folder) / name)
            line = {
                "model": name,
                "epochs": args.epochs,
                "test error": f"{error:.4f}",
                "device": describe_device("cpu"),
                "commit": args.commit,
            }
            keep(line, args.lines)


if __name__ == "__main__":
    main()
