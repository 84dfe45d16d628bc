"""What landmarks have seen, freed from how much they look at each other."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ono.nn.fused_between_landmarks import can_tell, fused_between_landmarks
from ono.nn.measure import at_least_float32
from ono.nn.pseudo_inverse import pseudo_inverse


def between_landmarks(
    q: Float[Tensor, "batch heads landmarks share"],
    k: Float[Tensor, "batch heads landmarks share"],
    seen: Float[Tensor, "batch heads landmarks share"],
    used: Bool[Tensor, "batch landmarks"] | None,
    iterations: int,
    *,
    kernels: bool = True,
) -> Float[Tensor, "batch heads landmarks share"]:
    """Return pinv(softmax(q kᵀ / sqrt(share))) seen, in float32 or better and rounded as `seen`.

    Of each sample the first landmarks are `used`; the others look at nothing and tell nothing. On a
    GPU there are `kernels` for at most 64 of them.

    >>> q, k = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2)
    >>> between_landmarks(q, k, torch.tensor([[[[3.0, 4.0]]]]), None, 6)[0, 0, 0].tolist()
    [3.0, 4.0]
    """
    if kernels and can_tell(q):
        return fused_between_landmarks(q, k, seen, used, iterations)
    with torch.autocast(q.device.type, enabled=False):
        wide_q, wide_k, wide_seen = map(at_least_float32, (q, k, seen))
        logits = wide_q @ wide_k.mT / math.sqrt(q.shape[-1])
        if used is None:
            shares = logits.softmax(-1)
        else:
            shares = logits.masked_fill(~used[:, None, None], -torch.inf).softmax(-1)
            real = used[:, None, :, None] & used[:, None, None]
            identity = torch.eye(used.shape[-1], dtype=shares.dtype, device=shares.device)
            shares = torch.where(real, shares, identity)
            wide_seen = wide_seen * used[:, None, :, None]
        return (pseudo_inverse(shares, iterations) @ wide_seen).to(seen.dtype)
