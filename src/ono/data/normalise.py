"""Scale values for the network and back. Fitted on training rows only, saved with the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.data.info import Coords
from ono.data.spread import Spread
from ono.data.view import Batch, real_points
from ono.domain import Domain

_CROWD = 1 << 16
"""Points of a batch whose ranks are taken, when coordinates are spread."""


class Normaliser(nn.Module):
    """Give each channel mean zero and deviation one; scale coordinates as asked for.

    A channel that never varies keeps its scale, so a constant field does not become NaN. The
    `history` frames of a roll-out follow the input channels and share the scale of the outputs.

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
    coord_mean: Tensor
    coord_std: Tensor
    time_low: Tensor
    time_span: Tensor

    def __init__(
        self,
        *,
        dim: int,
        in_channels: int,
        out_channels: int,
        history: int = 0,
        coords: Coords = "box",
    ) -> None:
        super().__init__()
        self.history = history
        self.coords = coords
        self.spread = Spread(dim) if coords == "spread" else None
        self.register_buffer("input_mean", torch.zeros(in_channels))
        self.register_buffer("input_std", torch.ones(in_channels))
        self.register_buffer("output_mean", torch.zeros(out_channels))
        self.register_buffer("output_std", torch.ones(out_channels))
        self.register_buffer("coord_low", torch.zeros(dim))
        self.register_buffer("coord_span", torch.ones(dim))
        if coords == "standard":
            self.register_buffer("coord_mean", torch.zeros(dim))
            self.register_buffer("coord_std", torch.ones(dim))
        self.register_buffer("time_low", torch.zeros(()))
        self.register_buffer("time_span", torch.ones(()))

    @torch.no_grad()
    def fit(self, batches: Iterable[Batch]) -> None:
        """Take means and deviations over all points of the given batches, in float64."""
        scaled = ["input", "output", *(["coord"] if self.coords == "standard" else [])]
        sums = {name: _Sums() for name in scaled}
        low = torch.full_like(self.coord_low, torch.inf)
        high, crowd = -low, []
        for batch in batches:
            mask = batch.domain.mask
            sums["input"].add(real_points(batch.values, mask))
            sums["output"].add(real_points(batch.target, mask))
            if batch.history is not None:
                sums["output"].add(real_points(batch.history, mask))
            if batch.times is not None:
                self.time_low.copy_(batch.times.amin())
                extent = batch.times.amax() - batch.times.amin()
                self.time_span.copy_(torch.where(extent > 0, extent, torch.ones_like(extent)))
            flat = real_points(batch.domain.coords, mask)
            if self.coords == "standard":
                sums["coord"].add(flat)
            low = torch.minimum(low, flat.amin(0).to(low))
            high = torch.maximum(high, flat.amax(0).to(high))
            crowd.append(flat[:: max(1, len(flat) // _CROWD)])
        if self.spread is not None:
            self.spread.fit(torch.cat(crowd).to(low))
        for name in scaled:
            mean, std = sums[name].result()
            getattr(self, f"{name}_mean").copy_(mean)
            getattr(self, f"{name}_std").copy_(std)
        self.coord_low.copy_(low)
        self.coord_span.copy_(torch.where(high > low, high - low, torch.ones_like(low)))

    def place(self, domain: Domain) -> Domain:
        """Return the domain with its coordinates as the network is told them."""
        if self.spread is not None:
            return replace(domain, coords=self.spread(domain.coords))
        if self.coords == "standard":
            return replace(domain, coords=(domain.coords - self.coord_mean) / self.coord_std)
        return replace(domain, coords=(domain.coords - self.coord_low) / self.coord_span)

    def encode(
        self, values: Float[Tensor, "batch points channels"]
    ) -> Float[Tensor, "batch points channels"]:
        """Scale physical inputs for the network."""
        mean = torch.cat((self.input_mean, self.output_mean.repeat(self.history)))
        std = torch.cat((self.input_std, self.output_std.repeat(self.history)))
        return (values - mean) / std

    def clock(self, time: Float[Tensor, " batch *time"]) -> Float[Tensor, " batch *time"]:
        """Return physical times on the scale where training spans 0 to 1."""
        return (time - self.time_low) / self.time_span

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

    def add(self, rows: Tensor) -> None:
        wide = rows.double()
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
