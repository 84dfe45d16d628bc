"""How fused kernels are given arrays: by their addresses, or by descriptors.

From a descriptor the hardware copies whole tiles, since Hopper. Making one takes Python some
microseconds, which a recorded step pays once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ono.nn.fused_launch import CHAIN, MULTIPROCESSORS

# Measured on an H200. With no more programs each copy answers later than loads do.
_MANY = 2 * MULTIPROCESSORS
_HOPPER = 9
_TIGHT = {"maxnreg": 168}
_TIGHT_WIDTH = 128


class Form(NamedTuple):
    """Whether arrays are described, and whether kernels that can are to do with fewer registers."""

    points: int
    described: bool
    tight: bool

    @classmethod
    def of(
        cls, programs: int, points: int, width: int, precision: str, device: torch.device
    ) -> Form:
        """Return the form for so many programs, each with a tile of so many points.

        Only products of bfloat16 numbers take descriptors: other weights have several parts.
        """
        if precision != "bf16" or programs <= _MANY or device.type != "cuda":
            return cls(points, described=False, tight=False)
        major, _ = torch.cuda.get_device_capability(device)
        two, three = (-(-programs // (beside * MULTIPROCESSORS)) for beside in (2, 3))
        # Three on a multiprocessor take a third longer than two.
        sooner = 4 * three < 3 * two and width == _TIGHT_WIDTH and major == _HOPPER
        return cls(points, described=major >= _HOPPER, tight=sooner)

    @property
    def options(self) -> dict[str, int]:
        """What the compiler is told: as few registers as let three programs share the chip's."""
        return _TIGHT if self.tight else {}

    def tiles(self, array: Tensor) -> Any:
        """Return an array of points as a kernel takes it."""
        if not self.described:
            return array
        width = array.shape[-1]
        return _described(array.view(-1, self.points, width), [1, CHAIN["tile"], width])

    def weight(self, parts: Tensor) -> Any:
        """Return one of the `operands` as a kernel takes it."""
        if not self.described:
            return parts
        rows, width = parts.shape[1:]
        return _described(parts[0], [min(rows, width), width])


def _described(array: Tensor, block: list[int]) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(array, block)
