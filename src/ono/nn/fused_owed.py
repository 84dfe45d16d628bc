"""Gradients of the parameters of fused blocks, from what the way back leaves for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ono.nn.fused_launch import MULTIPROCESSORS, SUM, tiles_at_once

# More rows than these are for torch, which shares them out among programs.
_MOST_ROWS = 1024
# Columns of a weight for which one program finishes the gradients of a norm.
_COLUMNS = 16


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
    summed: bool = True

    def settled(self, precision: str) -> Settled:
        """Return all of them; the sums of left are zeros if they are not wanted."""
        pairs, _, width = self.left.shape
        found, *arrays = add_up_all(self._products(precision), *self.arrays)
        products, sums = found.split((pairs * width, pairs))
        return Settled(products, sums, self._norms(products, sums), arrays)

    def _products(self, precision: str) -> Tensor:
        """Return the products and the sums of left, in parts to be added."""
        from ono.nn.fused_triton import weight_gradients

        pairs, rows, width = self.left.shape
        tile = SUM["tile"]
        chunk = -(-rows // tile // max(MULTIPROCESSORS // pairs, 1)) * tile
        chunks = -(-rows // chunk)
        out = self.left.new_empty(chunks, pairs * (width + 1), width, dtype=torch.float32)
        weight_gradients[pairs, chunks](
            self.left, self.right, out, rows, chunk, pairs,
            sharing=self.sharing, summed=self.summed, tile=tile, width=width,
            precision=precision, num_warps=4 if precision == "bf16" else 8,
            num_stages=tiles_at_once(out.device),
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
