"""Solve block-tridiagonal systems that are not symmetric, in batches, by matrix products alone.

Blocks are eliminated from the last to the first. With A_k on the diagonal, L_k at (k, k - 1) and
U_k at (k - 1, k),

    W_k = D_k^-1 L_k,    D_k-1 = A_k-1 - U_k W_k,    x_k = D_k^-1 b_k - W_k x_k-1.

A GPU multiplies many times faster than it pivots. D_k^-1 therefore comes from halves of halves,
and rows change places only within the smallest parts. The leading parts must be regular: those of
Stokes's operator are, velocities before pressures, as it is positive on the ones and negative on
the others. Whoever uses the answer should look at its residual.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ono.errors import ShapeError

SMALLEST = 64  # blocks up to this size are inverted with pivots


def inverse(a: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Return the inverse through the Schur complement S = D - C A^-1 B of a half:

        [A B]^-1   [A^-1 + Y S^-1 Z   -Y S^-1]
        [C D]    = [    -S^-1 Z         S^-1 ],    Y = A^-1 B,  Z = C A^-1.

    >>> inverse(torch.tensor([[0.0, 2.0], [4.0, 0.0]])).tolist()
    [[0.0, 0.25], [0.5, 0.0]]
    """
    n = a.shape[-1]
    if n <= SMALLEST:
        small: Tensor = torch.linalg.inv_ex(a).inverse
        return small
    half = n // 2
    b, c = a[..., :half, half:], a[..., half:, :half]
    first = inverse(a[..., :half, :half])
    z = c @ first
    second = inverse(a[..., half:, half:] - z @ b)
    right = -(first @ b) @ second
    out = torch.empty_like(a)
    out[..., :half, :half] = first - right @ z
    out[..., :half, half:] = right
    out[..., half:, :half] = -second @ z
    out[..., half:, half:] = second
    return out


def solve(
    diagonal: Float[Tensor, "batch blocks n n"],
    lower: Float[Tensor, "batch pairs n n"],
    upper: Float[Tensor, "batch pairs n n"],
    b: Float[Tensor, "batch blocks n"],
) -> Float[Tensor, "batch blocks n"]:
    """Return x with A x = b, A_k in `diagonal`, L_k and U_k as number k - 1 of `lower`, `upper`.

    >>> one = torch.ones(1, 1, 1, 1)
    >>> solve(4 * torch.ones(1, 2, 1, 1), one, 2 * one, torch.tensor([[[8.0], [9.0]]])).tolist()
    [[[1.0], [2.0]]]
    """
    blocks = diagonal.shape[1]
    if lower.shape[1] != blocks - 1:
        raise ShapeError(f"{blocks} blocks need {blocks - 1} between them, got {lower.shape[1]}")
    d, right = diagonal[:, -1], b[:, -1, :, None]
    passed: list[Tensor] = []
    for k in range(blocks - 1, 0, -1):
        w = inverse(d) @ torch.cat((lower[:, k - 1], right), -1)
        passed.append(w)
        change = upper[:, k - 1] @ w
        d = diagonal[:, k - 1] - change[..., :-1]
        right = b[:, k - 1, :, None] - change[..., -1:]
    x = [inverse(d) @ right]
    for w in reversed(passed):
        x.append(w[..., -1:] - w[..., :-1] @ x[-1])
    return torch.stack(x, 1)[..., 0]
