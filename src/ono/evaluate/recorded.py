"""Calls of an operator without the time it takes to start their kernels.

A call at a thousand points is some hundred kernels that a GPU could do in less than a millisecond
and Python needs many to start. Recorded once as a CUDA graph, they start all at once.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import InputError, ShapeError
from ono.models.ono_fused import fused_evaluation
from ono.nn.fused_launch import ambient_precision, missing

# CUDA wants the kernels of a recording to have run before.
_TRIALS = 3


class Recorded:
    """An operator or a bare model for inputs of one shape on one GPU, recorded when it is made.

    It answers as the operator does in evaluation mode, with fused kernels where they apply, in the
    precision that was in effect when it was made (`torch.set_float32_matmul_precision`, autocast).
    What is changed in place afterwards, weights and covariances, counts from the next call on: an
    operator that is trained on must be calibrated before, and nothing here asks.
    """

    def __init__(
        self,
        operator: nn.Module,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        time: Tensor | None = None,
    ) -> None:
        """Record a call with inputs like these; their numbers do not matter."""
        device = next(operator.parameters()).device
        if device.type != "cuda":
            raise InputError(
                f"a recording needs a GPU, and the operator is on {device.type}; call the operator"
            )
        self.domain = _copy_of(domain, device)
        self.values = values.to(device, copy=True)
        self.time = None if time is None else time.to(device, copy=True)
        self.graph = torch.cuda.CUDAGraph()
        can = missing(device, ambient_precision(device)) is None
        fused = fused_evaluation(operator) if can else contextlib.nullcontext()
        training = operator.training
        operator.eval()
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        try:
            with torch.no_grad(), torch.cuda.device(device), fused:
                with torch.cuda.stream(stream):
                    for _ in range(_TRIALS):
                        operator(self.domain, self.values, time=self.time)
                with torch.cuda.graph(self.graph, stream=stream):
                    self.output = operator(self.domain, self.values, time=self.time)
        finally:
            operator.train(training)
            torch.cuda.current_stream(device).wait_stream(stream)

    def __call__(
        self,
        domain: Domain,
        values: Float[Tensor, "batch points channels"],
        *,
        time: Tensor | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return the output function in physical units, on the GPU."""
        given = _tensors(domain, values, time)
        known = _tensors(self.domain, self.values, self.time)
        shapes, others = ({k: tuple(v.shape) for k, v in x.items()} for x in (known, given))
        if shapes != others or domain.shape != self.domain.shape:
            raise ShapeError(
                f"recorded for {_told(shapes, self.domain)}, given {_told(others, domain)}; make "
                "another recording for these shapes"
            )
        for name, tensor in given.items():
            known[name].copy_(tensor, non_blocking=True)
        self.graph.replay()
        answer: Tensor = self.output.clone()
        return answer


def _copy_of(domain: Domain, device: torch.device) -> Domain:
    """Return a domain in memory of its own, which no sample shares with another."""

    def copy(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(device).contiguous().clone()

    coords = domain.coords.to(device).contiguous().clone()
    return replace(domain, coords=coords, weights=copy(domain.weights), mask=copy(domain.mask))


def _tensors(domain: Domain, values: Tensor, time: Tensor | None) -> dict[str, Tensor]:
    found = {
        "coords": domain.coords,
        "weights": domain.weights,
        "mask": domain.mask,
        "values": values,
        "time": time,
    }
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _told(shapes: dict[str, tuple[int, ...]], domain: Domain) -> str:
    grid = "" if domain.shape is None else f" on a grid of {domain.shape}"
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) + grid
