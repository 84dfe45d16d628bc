"""Ask whether ONO on Darcy flow lacks what is around a point.

OMP_NUM_THREADS=1 python benchmarks/darcy_local.py --lines benchmarks/results/darcy_local.jsonl

Trains the quick recipes of ONO, Galerkin Transformer, F-FNO and LSM on the same 600 samples of
29 × 29 nodes, and ONO with more: two 3 × 3 convolutions behind each of its encoders; one of the
values in the attention of every NN block; what its surroundings are; the last two together; and
Nyström attention, without and with the convolution along the numbering of the nodes that the
released code has. Every training takes some minutes on one core. `--seeds N` trains with seeds 0 to
N - 1.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lines import keep
from torch import Tensor, nn

from ono.data.benchmarks import benchmark
from ono.data.generate import make
from ono.device import describe_device, keep_freed_memory
from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.nn.attention import EfficientAttention, Summary
from ono.nn.measure import Measure
from ono.problem import Problem
from ono.train.loop import fit
from ono.train.recipe import Recipe

SIDE = 29
NYSTROM = ["darcy/ono-quick", "model.lower.attention=nystrom", "model.lower.landmarks=64"]
MODELS = {
    "ono": ["darcy/ono-quick"],
    "ono, convolutions behind its encoders": ["darcy/ono-quick"],
    "ono, convolutions in its NN blocks": ["darcy/ono-quick"],
    "ono, `model.surroundings=32`": ["darcy/ono-quick", "model.surroundings=32"],
    "ono, surroundings, convolutions in its NN blocks": [
        "darcy/ono-quick",
        "model.surroundings=32",
    ],
    "ono, nystrom": NYSTROM,
    "ono, nystrom, index convolution": [*NYSTROM, "model.lower.index_convolution=true"],
    "galerkin": ["darcy/galerkin-quick"],
    "f-fno": ["darcy/f-fno-quick"],
    "lsm": ["darcy/lsm-quick"],
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


class LocalEncoders(ONO):
    """ONO whose encoders end with local layers."""

    def __init__(self, config: ONOConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        for encoder in (self.encoder_g, self.encoder_h):
            encoder.extend([Local(config.width), Local(config.width)])


class LocalAttention(EfficientAttention):
    """Attention that adds, channel by channel, a 3 × 3 convolution of the values on the grid."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        around: Any = {"padding": 1, "padding_mode": "replicate", "groups": width}
        self.convolution = nn.Conv2d(width, width, 3, **around)

    def forward(self, x: Tensor, measure: Measure) -> tuple[Tensor, Summary]:
        """Return the attention of the points to each other, and their summary."""
        q, k, v = self.qkv(x).chunk(3, -1)
        summary = self.summary(q, k, v, measure)
        near = self.convolution(v.mT.unflatten(-1, (SIDE, SIDE))).flatten(2).mT
        return self.out(self.mix(q, summary) + near), summary


def test_error(name: str, data: Path, epochs: int, seed: int, run: Path) -> float:
    """Train once; return the test error."""
    source, *own = MODELS[name]
    changes = [
        f"data.path={data}",
        "train.device=cpu",
        f"train.epochs={epochs}",
        f"seed={seed}",
        *own,
    ]
    recipe = Recipe.load(source, [*changes, f"train.validate_every={epochs}"])
    encoders = LocalEncoders if "behind" in name else ONO
    attention = LocalAttention if "in its NN blocks" in name else EfficientAttention
    with (
        patch("ono.models.ono.ONO", encoders),
        patch("ono.models.ono.EfficientAttention", attention),
    ):
        return fit(recipe, run).test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        make(benchmark("darcy"), Path(folder) / "darcy", size="quick", device="cpu")
        for name in args.models:
            errors = []
            for seed in range(args.seeds):
                run = Path(folder) / f"{name}-{seed}"
                errors.append(test_error(name, Path(folder) / "darcy", args.epochs, seed, run))
            line = {
                "model": name,
                "epochs": args.epochs,
                "test errors": ", ".join(f"{error:.4f}" for error in errors),
                "device": describe_device("cpu"),
                "commit": args.commit,
            }
            keep(line, args.lines)


if __name__ == "__main__":
    main()
