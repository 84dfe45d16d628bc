"""What the fused blocks share: in which precision, in which pieces, and what ends a way back.

Fused blocks compute what `NNBlock` and `OrthogonalBlock` compute, which stay the definition and are
what tests compare with. Their kernels need Triton, which comes with torch for CUDA.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

WIDTHS = (64, 128)
"""Channels for which a tile of points and a weight fit a multiprocessor."""

# Measured on an H200 (benchmarks/kernels.py). Chains hold tiles of points, sums hold a matrix.
CHAIN = {"tile": 64, "num_warps": 4, "num_stages": 1}
SUM = {"tile": 64, "num_warps": 8, "num_stages": 1}
_MULTIPROCESSORS = 132
# Programs that keep an H200 busy; results of so many are added afterwards, so not many more.
_PROGRAMS = 2 * _MULTIPROCESSORS
_MOST_PARTS = 64
# Programs from which on tiles are copied by the hardware, and the first GPUs that can.
_MANY = 2 * _MULTIPROCESSORS
_DESCRIBES = (9, 0)
_SPLIT = {"bf16": 1, "bf16x3": 2}
_MOST_ROWS = 1024
_COLUMNS = 16


def available() -> bool:
    """Say whether the kernels can be compiled here."""
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


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


class Form(NamedTuple):
    """How a kernel is given arrays: by their addresses, or by descriptors of tiles of points."""

    points: int
    described: bool
    tight: bool

    @classmethod
    def of(cls, programs: int, points: int, precision: str, device: torch.device) -> Form:
        """Return the form for so many programs, each with some of so many points."""
        many = precision == "bf16" and programs > _MANY and device.type == "cuda"
        described = many and torch.cuda.get_device_capability(device) >= _DESCRIBES
        two, three = (-(-programs // (beside * _MULTIPROCESSORS)) for beside in (2, 3))
        # Three on a multiprocessor take a third longer than two.
        return cls(points, described, described and 4 * three < 3 * two)

    @property
    def size(self) -> dict[str, int]:
        """How a kernel is compiled that can do with fewer registers: three of it run beside."""
        return {"maxnreg": 168} if self.tight else {}

    def tiles(self, array: Tensor) -> Any:
        """Return an array of points as a kernel takes it."""
        if not self.described:
            return array
        from triton.tools.tensor_descriptor import TensorDescriptor

        width = array.shape[-1]
        samples = array.view(-1, self.points, width)
        return TensorDescriptor.from_tensor(samples, [1, CHAIN["tile"], width])

    def weight(self, parts: Tensor) -> Any:
        """Return one of the `operands` as a kernel takes it."""
        if not self.described:
            return parts
        from triton.tools.tensor_descriptor import TensorDescriptor

        rows, width = parts.shape[1:]
        return TensorDescriptor.from_tensor(parts[0], [min(rows, width), width])


def chain(programs: int, precision: str) -> dict[str, int]:
    """Return the size of programs in a chain: larger if each has a multiprocessor for itself.

    Programs with products of bfloat16 alone are short, and rather leave room for the other flow's.
    """
    alone = programs <= _MULTIPROCESSORS and precision != "bf16"
    return CHAIN | {"num_warps": 8} if alone else CHAIN


def long_sum(steps: int) -> dict[str, int]:
    """Return the size of programs that sum over so many tiles; many are read ahead."""
    return SUM | {"num_stages": 3} if steps > 2 else SUM


def stored(precision: str) -> torch.dtype:
    """Return the type of what forward keeps for backward, and backward for the weights."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def feed_forward_back(
    d_after: Tensor,
    before: Tensor,
    parameters: tuple[Tensor, ...],
    left: Tensor,
    right: Tensor,
    precision: str,
) -> Tensor:
    """Return the gradient before the FFN of a block."""
    from ono.nn.feed_forward_triton import feed_forward_backward

    norm, shift, w_1, b_1, w_2 = parameters
    rows, width = left.shape[1:]
    programs = -(-rows // CHAIN["tile"])
    form = Form.of(programs, rows, precision, before.device)
    d_before = torch.empty_like(before)
    feed_forward_backward[programs,](
        form.tiles(d_after), form.tiles(before), norm, shift, form.weight(w_1), b_1,
        form.weight(w_2), w_2.stride(0), form.tiles(d_before), form.tiles(left), form.tiles(right),
        rows, **chain(programs, precision), **form.size, width=width, precision=precision,
    )  # fmt: skip
    return d_before


class Behind(NamedTuple):
    """A linear layer behind a norm: from which pair on its gradient comes, and their parameters."""

    pair: int
    weight: Tensor
    scale: Tensor
    shift: Tensor


class Settled(NamedTuple):
    """Gradients of a block's parameters: of weights and biases by pair, of norms, and the rest."""

    products: Tensor
    sums: Tensor
    norms: list[Tensor]
    arrays: list[Tensor]


class Owed(NamedTuple):
    """What the gradients of a block's parameters come from: nothing on the way back waits for them.

    They are leftᵀ right of all pairs, of which the first `sharing` have the same right, the sums of
    left, and the sums of some arrays over their first axis. A right that comes from a norm has not
    been scaled and shifted: that, and the gradients of scale and shift, follow from the sums.
    """

    left: Tensor
    right: Tensor
    sharing: int
    arrays: tuple[Tensor, ...]
    behind: tuple[Behind, ...] = ()

    def settled(self, precision: str) -> Settled:
        """Return all of them; if all pairs share one right, left is not summed."""
        pairs, _, width = self.left.shape
        found, *arrays = add_up_all(self._products(precision), *self.arrays)
        products, sums = found.split((pairs * width, pairs))
        return Settled(products, sums, self._norms(products, sums), arrays)

    def _products(self, precision: str) -> Tensor:
        """Return the products and the sums of left, in parts to be added."""
        from ono.nn.fused_triton import weight_gradients

        pairs, rows, width = self.left.shape
        tile = SUM["tile"]
        chunk = -(-rows // tile // max(_MULTIPROCESSORS // pairs, 1)) * tile
        chunks = -(-rows // chunk)
        out = self.left.new_empty(chunks, pairs * (width + 1), width, dtype=torch.float32)
        weight_gradients[pairs, chunks](
            self.left, self.right, out, rows, chunk, pairs,
            sharing=self.sharing, summed=self.sharing < pairs, tile=tile, width=width,
            precision=precision, num_warps=4 if precision == "bf16" else 8,
        )  # fmt: skip
        return out

    def _norms(self, products: Tensor, sums: Tensor) -> list[Tensor]:
        """Return the gradients of scale and shift of each norm; finish the products behind it."""
        from ono.nn.fused_triton import behind_norms

        if not self.behind:
            return []
        width = products.shape[-1]
        found = [products.new_empty(2, width) for _ in self.behind]
        told: list[Any] = []
        for (pair, weight, scale, shift), gradients in zip(self.behind, found, strict=True):
            own = products[pair * width :], sums[pair:]
            told += [*own, weight, scale, shift, gradients, len(weight)]
        told += told * (2 - len(self.behind))
        behind_norms[width // _COLUMNS, len(self.behind)](*told, columns=_COLUMNS, width=width)
        return found


def add_up_all(few: Tensor, *many: Tensor) -> list[Tensor]:
    """Return the sums over their first axis of an array with few rows and up to two with many."""
    from ono.nn.fused_triton import add_up

    # One program adds all rows of its columns: very many are for torch, which shares them out.
    arrays = [
        few,
        *(array.sum(0, keepdim=True) if len(array) > _MOST_ROWS else array for array in many),
    ]
    sums = [torch.empty_like(array[0]) for array in arrays]
    told: list[Any] = []
    for array, total in zip(arrays, sums, strict=True):
        told += [array, total, len(array), total.numel()]
    told += [few, sums[0], 0, 0] * (3 - len(arrays))
    rows, width, more_rows, less_width = 32, 128, 256, 16
    blocks = -(-sums[0].numel() // width) + sum(-(-t.numel() // less_width) for t in sums[1:])
    add_up[blocks,](
        *told, rows=rows, width=width, more_rows=more_rows, less_width=less_width, num_warps=4
    )
    return sums
