"""Time softmax attention of many points, forward and backward, by each kernel that torch has.

python benchmarks/softmax.py --points 11271 16641

In bfloat16, with heads of 16 channels; "ours" is what `ono.nn.softmax_attention` takes. With
weights of the points ("biased") and without; a kernel that refuses them or the device is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from lines import keep
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ono.device import choose_device, describe_device
from ono.nn.softmax_attention import softmax_attention

Answer = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
CHANNELS = 16


def by_torch(kernel: SDPBackend) -> Answer:
    """Return the attention of one kernel, which raises RuntimeError if it cannot answer."""

    def answer(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        rounded = None if bias is None else bias.to(q.dtype)
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=rounded)

    return answer


def milliseconds(answer: Answer, given: list[Tensor], bias: Tensor | None, times: int) -> float:
    """Return how long one answer and its gradients take, after one that is not counted."""
    q, k, v = given
    for count in (1, times):
        began = time.perf_counter()
        for _ in range(count):
            answer(q, k, v, bias).sum().backward()
        if q.is_cuda:
            torch.cuda.synchronize(q.device)
    return 1e3 * (time.perf_counter() - began) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--points", type=int, nargs="+", default=[11271, 16641])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    device = choose_device(args.device)
    answers = {"ours": softmax_attention, **{name: by_torch(one) for name, one in KERNELS.items()}}
    for points in args.points:
        shape = (3, args.batch, args.heads, points, CHANNELS)
        drawn = torch.randn(shape, dtype=torch.bfloat16, device=device)
        given = [x.clone().requires_grad_() for x in drawn]
        weights = torch.rand(args.batch, 1, 1, points, device=device).log()
        for biased in (False, True):
            for name, answer in answers.items():
                try:
                    took = milliseconds(answer, given, weights if biased else None, args.times)
                except RuntimeError:
                    continue
                line = {
                    "points": points,
                    "batch": args.batch,
                    "heads": args.heads,
                    "biased": biased,
                    "kernel": name,
                    "milliseconds": round(took, 2),
                    "device": describe_device(device),
                    "commit": args.commit,
                }
                keep(line, args.lines)


if __name__ == "__main__":
    main()
