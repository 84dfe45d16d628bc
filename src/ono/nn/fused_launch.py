"""What the fused blocks share: in which precision, and in which pieces.

Fused blocks compute what `NNBlock` and `OrthogonalBlock` compute, which stay the definition and are
what tests compare with. Their kernels need Triton, which comes with torch for CUDA.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ono.nn.measure import Measure

WIDTHS = (64, 128)
"""Channels for which a tile of points and a weight fit a multiprocessor."""

# Measured on an H200 (benchmarks/kernels.py). Chains hold tiles of points, sums hold a matrix.
CHAIN = {"tile": 64, "num_warps": 4, "num_stages": 1}
SUM = {"tile": 64, "num_warps": 8, "num_stages": 1}
MULTIPROCESSORS = 132
# Programs that keep an H200 busy; results of so many are added afterwards, so not many more.
_PROGRAMS = 2 * MULTIPROCESSORS
_MOST_PARTS = 64
_SPLIT = {"bf16": 1, "bf16x3": 2}
# Bytes of shared memory: of the program that needs most with three tiles, and what CUDA keeps.
_MOST_TILES, _THREE_TILES, _RESERVED = 3, 164_352, 1024
_BFLOAT16 = (8, 0)
"""Compute capability from which on tensor cores take bfloat16 numbers."""
_TENSOR_MEMORY = (10, 11)
"""Compute capabilities with a memory for sums of products, too small for those of landmarks."""


def missing(device: torch.device, precision: str = "bf16") -> str | None:
    """Return what kernels of a precision lack on a device, as the verb of a sentence, or None.

    >>> missing(torch.device("cpu"))
    'needs a GPU, and this is on cpu'
    """
    if device.type != "cuda":
        return f"needs a GPU, and this is on {device.type}"
    if torch.version.hip is not None:
        return "needs an NVIDIA GPU"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < _BFLOAT16:
        return (
            "needs a GPU that multiplies bfloat16 numbers, of compute capability 8.0, and this "
            f"one has {major}.{minor}"
        )
    if importlib.util.find_spec("triton") is None:
        return "needs Triton, which is not installed"
    if precision == "bf16x6" and tiles_at_once(device) < _MOST_TILES:
        return "takes more shared memory in fp32 than this GPU has"
    return None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def has_landmark_kernels(device: torch.device) -> bool:
    """Say whether the kernels for few landmarks can be compiled and run on a GPU."""
    major, _ = torch.cuda.get_device_capability(device)
    return missing(device) is None and major not in _TENSOR_MEMORY


def available() -> bool:
    """Say whether the kernels can be compiled and run here."""
    return torch.cuda.is_available() and missing(torch.device("cuda")) is None


def ambient_precision(device: torch.device) -> str:
    """Return how products are to be computed, as autocast and torch's float32 setting say.

    Products in float32 become several of bfloat16 numbers: six keep its digits, three are still
    better than TF32.
    """
    if torch.is_autocast_enabled(device.type):
        return "bf16"
    return "bf16x6" if torch.get_float32_matmul_precision() == "highest" else "bf16x3"


def operands(weights: Sequence[Tensor], precision: str) -> list[Tensor]:
    """Return weights as the kernels multiply with them: split once, not by every program.

    Each is the sum over its first axis. All are as far apart there: they share one tensor.
    """
    flat = torch.cat([weight.detach().flatten() for weight in weights])
    parts = [flat.bfloat16()]
    for _ in range(_SPLIT.get(precision, 3) - 1):
        flat = flat - parts[-1]
        parts.append(flat.bfloat16())
    sizes = [weight.numel() for weight in weights]
    split = (torch.stack(parts) if len(parts) > 1 else parts[0][None]).split(sizes, 1)
    return [part.unflatten(1, weight.shape) for part, weight in zip(split, weights, strict=True)]


def exact(precision: str) -> str:
    """Return how covariances and moments are computed: with the digits of float32, always."""
    return "ieee" if precision == "ieee" else "bf16x6"


def wide(precision: str) -> str:
    """Return how products between moments and points are computed."""
    return "bf16x3" if precision == "bf16" else precision


class Setting(NamedTuple):
    """What all blocks of a step share: the measure, channels of a head, how to compute."""

    weights: Tensor | None
    share: int
    precision: str
    padded: bool = True

    @property
    def measure(self) -> Measure:
        """The measure as modules of torch are given it."""
        return Measure(self.weights, padded=self.padded)


class Cut(NamedTuple):
    """How the points of samples are cut: tiles of chains, and parts of so many steps of sums."""

    tiles: int
    parts: int
    steps: int

    @classmethod
    def of(cls, samples: int, points: int) -> Cut:
        """Return the cut that gives all parts of a GPU something to do.

        >>> Cut.of(samples=8, points=972)
        Cut(tiles=16, parts=16, steps=1)
        """
        blocks = -(-points // SUM["tile"])
        parts = min(max(_PROGRAMS // samples, 1), _MOST_PARTS, blocks)
        steps = -(-blocks // parts)
        return cls(-(-points // CHAIN["tile"]), -(-blocks // steps), steps)


def chain(programs: int, precision: str) -> dict[str, int]:
    """Return the size of programs in a chain: larger if each has a multiprocessor for itself.

    Programs with products of bfloat16 alone are short, and rather leave room for the other flow's.
    """
    alone = programs <= MULTIPROCESSORS and precision != "bf16"
    return CHAIN | {"num_warps": 8} if alone else CHAIN


def long_sum(steps: int, device: torch.device) -> dict[str, int]:
    """Return the size of programs that sum over so many tiles; many are read ahead."""
    return SUM | {"num_stages": tiles_at_once(device)} if steps > 2 else SUM


@functools.cache
def tiles_at_once(device: torch.device) -> int:
    """Return how many tiles a sum over points holds at once: three where they fit, else two.

    Three fit the shared memory of an A100 and of what came after it for servers, two also that of
    other GPUs.
    """
    if device.type != "cuda":
        return _MOST_TILES
    known = torch.cuda.get_device_properties(device)
    room = known.shared_memory_per_multiprocessor - _RESERVED
    return _MOST_TILES if room >= _THREE_TILES else _MOST_TILES - 1


def stored(precision: str) -> torch.dtype:
    """Return the type of what forward keeps for backward, and backward for the weights."""
    return torch.bfloat16 if precision == "bf16" else torch.float32
