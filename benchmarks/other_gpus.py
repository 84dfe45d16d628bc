"""Compile the fused kernels of a training step for GPUs that are not here: do they fit?

python benchmarks/other_gpus.py
python benchmarks/other_gpus.py 8.6 --precisions bf16
python benchmarks/other_gpus.py 9.0 --only "told*"

Needs Triton, and no GPU. Nothing is run: a compiled kernel says how much shared memory it takes,
and its code whether it reads registers that nothing has written, which would be the compiler's
fault and ours to avoid.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import triton
from lines import keep
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from unset_registers import unset_registers

import ono.models.ono_fused as fused
import ono.nn.between_landmarks as between
import ono.nn.fused_between_landmarks as fused_between
import ono.nn.fused_landmark_attention as fused_landmarks
import ono.nn.fused_launch as launch
import ono.nn.fused_owed as owed
import ono.nn.landmark_attention as landmarks
from ono.domain import Domain
from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.nn.fused_form import Form
from ono.problem import Problem

# KiB of shared memory that a program may have, by compute capability.
ROOM = {"8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227, "10.0": 227, "12.0": 99}
PRECISIONS = {"bf16": "bf16", "tf32": "bf16x3", "fp32": "bf16x6"}
HOPPER = 9
LANDMARKS = (16, 32, 64)


class Elsewhere:
    """What Triton asks a GPU, answered for one that is not here."""

    def __init__(self, capability: str) -> None:
        major, minor = capability.split(".")
        self.target = GPUTarget("cuda", 10 * int(major) + int(minor), 32)

    def get_current_target(self) -> GPUTarget:
        return self.target


class Compiled:
    """Take the place of launches: compile what would be run, each kernel once."""

    def __init__(self, only: str) -> None:
        self.only = only
        self.shared: dict[str, int] = {}
        self.unset = 0

    def run(self, kernel: Any, *args: Any, **options: Any) -> None:
        for name in ("grid", "warmup"):
            options.pop(name)
        if not fnmatchcase(kernel.fn.__name__, self.only):
            return
        *_, target, backend, bind = kernel.create_binder()
        bound, special, _ = bind(*args, **options)
        asked, signature, constants, attributes = kernel._pack_args(
            backend, options, bound, special, {}
        )
        key = f"{kernel.fn.__name__} {special} {asked}"
        if key not in self.shared:
            source = kernel.ASTSource(kernel, signature, constants, attributes)
            done = triton.compile(source, target=target, options=asked.__dict__)
            self.shared[key] = done.metadata.shared
            self.unset += bool(unset_registers(done.asm["cubin"]))


def step(functions: int, sets: int, **lower: Any) -> None:
    """Take one step of an operator of width 128, with enough points for sums of many tiles."""
    config = ONOConfig.model_validate(
        {
            "layers": 1,
            "lower": {"heads": 128 // functions, **lower},
            "eigen": {"functions": functions, "heads": sets},
        }
    )
    model = ONO(config, Problem(dim=2, in_channels=1, out_channels=1))
    domain = Domain.grid((85, 85), batch=8)
    values = torch.zeros(8, 85 * 85, 1)
    told, measure = model._inputs(domain, values), model._measure(domain)
    out = fused.flows(model, told, None, measure, streams=False)
    torch.autograd.grad(out.sum(), list(model.parameters()))


def has_landmarks(capability: str) -> bool:
    """Say whether a GPU is given the kernels for few landmarks."""
    return major_of(capability) not in launch._TENSOR_MEMORY


def major_of(capability: str) -> int:
    return int(capability.split(".")[0])


def pretend(capability: str, precision: str, only: str) -> Compiled:
    """Let tensors of the CPU be taken for those of another GPU."""
    driver.set_active(Elsewhere(capability))
    compiled = Compiled(only)
    JITFunction.run = lambda kernel, *args, **options: compiled.run(kernel, *args, **options)
    major = major_of(capability)
    fits = 1024 * ROOM[capability] >= launch._THREE_TILES
    described = major >= HOPPER and precision == "bf16"
    tight = described and major == HOPPER
    attending = (fused, fused_between, fused_landmarks)
    answers: list[tuple[object, str, Callable[..., Any]]] = [
        (launch, "tiles_at_once", lambda device: 3 if fits else 2),
        (owed, "tiles_at_once", lambda device: 3 if fits else 2),
        (between, "can_tell", lambda q: q.shape[-2] <= fused_landmarks.MOST_LANDMARKS),
        (landmarks, "can_attend", lambda q, k: True),
        *((place, "ambient_precision", lambda device: precision) for place in attending),
        (Form, "of", lambda _, points, *rest: Form(points, described, tight)),
    ]
    for place, name, answer in answers:
        setattr(place, name, answer)
    return compiled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("capabilities", nargs="*", help=f"of {', '.join(ROOM)}; default: all")
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--only", default="*", help="kernels named like this")
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    if unknown := set(args.capabilities) - set(ROOM):
        parser.error(f"nothing is known of {', '.join(sorted(unknown))}")
    for capability in args.capabilities or ROOM:
        for name in args.precisions:
            compiled = pretend(capability, PRECISIONS[name], args.only)
            for functions, sets in ((16, 1), (16, 8), (32, 4)):
                step(functions, sets)
            for count in LANDMARKS if has_landmarks(capability) else ():
                step(16, 1, attention="nystrom", landmarks=count)
            if not compiled.shared:
                parser.error(f"no kernel for {capability} is named like {args.only!r}")
            largest = max(compiled.shared, key=lambda key: compiled.shared[key])
            keep(
                {
                    "compute capability": capability,
                    "precision": name,
                    "kernels": len(compiled.shared),
                    "largest": largest.split()[0],
                    "its KiB": round(compiled.shared[largest] / 1024, 1),
                    "KiB there are": ROOM[capability],
                    "reading unset registers": compiled.unset,
                    "triton": triton.__version__,
                    "commit": args.commit,
                },
                args.lines,
            )


if __name__ == "__main__":
    main()
