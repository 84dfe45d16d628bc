"""Heads without reshuffling memory.

Splitting channels into heads usually means copying every point's features into another layout.
A product over all channels followed by a mask that keeps only pairs of the same head gives the
same numbers; it costs more arithmetic on small matrices and moves far fewer bytes.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def same_head(heads: int, rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """Return 1 where a row and a column belong to the same head, 0 elsewhere.

    >>> same_head(2, 2, 4).tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    """
    return torch.kron(torch.eye(heads), torch.ones(rows // heads, columns // heads))


def block_diagonal(
    blocks: Float[Tensor, "*batch heads k k"],
) -> Float[Tensor, "*batch modes modes"]:
    """Lay square blocks along the diagonal of one matrix.

    >>> block_diagonal(torch.tensor([[[1.0]], [[2.0]]])).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    heads, size, _ = blocks.shape[-3:]
    owner = torch.eye(heads, dtype=blocks.dtype, device=blocks.device)
    spread = owner[:, None, :, None] * blocks[..., :, :, None, :]
    return spread.reshape(*blocks.shape[:-3], heads * size, heads * size)
