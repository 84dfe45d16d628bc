"""Scale values for the network and back. Fitted on training rows only, saved with the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.data.batches import Batch
from ono.domain import Domain


class Normaliser(nn.Module):
    """Give each channel mean zero and deviation one; map coordinates into the unit box.

    A channel that never varies keeps its scale, so a constant field does not become NaN.

    >>> normaliser = Normaliser(dim=1, in_channels=1, out_channels=1)
    >>> domain, values = Domain(torch.tensor([[[0.0], [4.0]]])), torch.tensor([[[1.0], [3.0]]])
    >>> normaliser.fit([Batch(domain, values, 10 * values, torch.tensor([0]))])
    >>> normaliser.encode(values).flatten().tolist(), normaliser.place(domain).coords.max().item()
    ([-1.0, 1.0], 1.0)
    """

    input_mean: Tensor
    input_std: Tensor
    output_mean: Tensor
    output_std: Tensor
    coord_low: Tensor
    coord_span: Tensor

    def __init__(self, *, dim: int, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.register_buffer("input_mean", torch.zeros(in_channels))
        self.register_buffer("input_std", torch.ones(in_channels))
        self.register_buffer("output_mean", torch.zeros(out_channels))
        self.register_buffer("output_std", torch.ones(out_channels))
        self.register_buffer("coord_low", torch.zeros(dim))
        self.register_buffer("coord_span", torch.ones(dim))

    @torch.no_grad()
    def fit(self, batches: Iterable[Batch]) -> None:
        """Take means and deviations over all points of the given batches, in float64."""
        sums = {name: _Sums() for name in ("input", "output")}
        low = torch.full_like(self.coord_low, torch.inf)
        high = -low
        for batch in batches:
            mask = batch.domain.mask
            sums["input"].add(batch.values, mask)
            sums["output"].add(batch.target, mask)
            coords = batch.domain.coords[mask] if mask is not None else batch.domain.coords
            flat = coords.reshape(-1, coords.shape[-1])
            low = torch.minimum(low, flat.amin(0).to(low))
            high = torch.maximum(high, flat.amax(0).to(high))
        for name, part in sums.items():
            mean, std = part.result()
            getattr(self, f"{name}_mean").copy_(mean)
            getattr(self, f"{name}_std").copy_(std)
        self.coord_low.copy_(low)
        span = high - low
        self.coord_span.copy_(torch.where(span > 0, span, torch.ones_like(span)))

    def place(self, domain: Domain) -> Domain:
        """Return the domain with its coordinates in the unit box of the training data."""
        return replace(domain, coords=(domain.coords - self.coord_low) / self.coord_span)

    def encode(
        self, values: Float[Tensor, "batch points channels"]
    ) -> Float[Tensor, "batch points channels"]:
        """Scale physical inputs for the network."""
        return (values - self.input_mean) / self.input_std

    def decode(
        self, output: Float[Tensor, "batch ... channels"]
    ) -> Float[Tensor, "batch ... channels"]:
        """Return the network's output in physical units."""
        return output * self.output_std + self.output_mean


class _Sums:
    """Mean and deviation of a stream, shifted by its first batch so that nothing cancels."""

    def __init__(self) -> None:
        self.count = 0
        self.shift = self.first = self.second = torch.zeros((), dtype=torch.float64)

    def add(self, x: Tensor, mask: Tensor | None) -> None:
        if mask is not None:
            x = (x.transpose(1, 2) if x.ndim == 4 else x)[mask]
        wide = x.flatten(0, -2).double()
        if self.count == 0:
            self.shift = wide.mean(0)
        wide = wide - self.shift
        self.count += wide.shape[0]
        self.first = self.first + wide.sum(0)
        self.second = self.second + wide.square().sum(0)

    def result(self) -> tuple[Tensor, Tensor]:
        mean = self.first / self.count
        std = (self.second / self.count - mean.square()).clamp_min(0).sqrt()
        return mean + self.shift, torch.where(std > 0, std, torch.ones_like(std))
