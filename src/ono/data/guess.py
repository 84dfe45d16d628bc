"""A first answer that needs no learning: affine in the place, the inputs there, and the time.

The next frame of a series is nearly the last one, a deformed coordinate nearly the coordinate. An
operator that starts from the affine fit learns only what is left, on the scale of what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ono.data.normalise import Normaliser
from ono.data.view import Batch, real_points
from ono.data.windows import windows
from ono.domain import Domain


class AffineGuess(nn.Module):
    """The least-squares fit of scaled outputs to (1, time, place, scaled inputs), point by point.

    >>> normaliser = Normaliser(dim=1, in_channels=1, out_channels=1)
    >>> domain, values = Domain(torch.rand(3, 5, 1)), torch.rand(3, 5, 1)
    >>> batch = Batch(domain, values, 2 * values + domain.coords, torch.arange(3))
    >>> normaliser.fit([batch])
    >>> guess = AffineGuess(dim=1, in_channels=1, out_channels=1)
    >>> guess.fit(normaliser, [batch])
    >>> placed, scaled = normaliser.place(domain), normaliser.encode(values)
    >>> answer = normaliser.decode(guess(torch.zeros(3, 5, 1), placed, scaled))
    >>> torch.allclose(answer, batch.target, atol=1e-4)
    True
    """

    weight: Tensor
    remainder: Tensor

    def __init__(self, *, dim: int, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(2 + dim + in_channels, out_channels))
        self.register_buffer("remainder", torch.ones(out_channels))

    @torch.no_grad()
    def fit(self, normaliser: Normaliser, batches: Iterable[Batch]) -> None:
        """Solve the normal equations over all points in float64, and measure what is left."""
        count = 0
        gram = cross = square = torch.zeros((), dtype=torch.float64)
        for batch in batches:
            for features, target in _regression(normaliser, batch):
                count += len(features)
                gram = gram + features.T @ features
                cross = cross + features.T @ target
                square = square + target.square().sum(0)
        # A feature that never varies would leave the system singular.
        ridge = 1e-9 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        weight = torch.linalg.solve(gram + ridge, cross)
        left = square - 2 * (weight * cross).sum(0) + (weight * (gram @ weight)).sum(0)
        std = (left / count).clamp_min(0).sqrt()
        self.weight.copy_(weight)
        self.remainder.copy_(std.clamp_min(1e-6))

    def forward(
        self,
        output: Float[Tensor, "batch ... out"],
        placed: Domain,
        scaled: Float[Tensor, "batch points channels"],
        clock: Float[Tensor, " batch *time"] | None = None,
    ) -> Float[Tensor, "batch ... out"]:
        """Return the guess plus the network's output, on the network's scale."""
        guess: Tensor = _features(placed, scaled) @ self.weight
        if clock is not None:
            shift = clock[..., None, None] * self.weight[1]
            guess = (guess[:, None] if clock.ndim == 2 else guess) + shift
        return guess + output * self.remainder


def _features(placed: Domain, scaled: Tensor) -> Float[Tensor, "batch points features"]:
    """Return one, an empty place for the time, the place and the inputs of every point."""
    one = torch.ones_like(placed.coords[..., :1])
    return torch.cat((one, torch.zeros_like(one), placed.coords, scaled), -1)


def _regression(normaliser: Normaliser, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features and scaled targets of all points in float64, a time after the other."""
    domain, values, targets = batch.domain, batch.values, [batch.target]
    clocks = [torch.zeros(())]
    if batch.history is not None:
        domain, values, target = windows(batch)
        targets = [target]
    elif batch.times is not None:
        targets, clocks = list(batch.target.unbind(1)), list(normaliser.clock(batch.times))
    features = _features(normaliser.place(domain), normaliser.encode(values))
    for clock, target in zip(clocks, targets, strict=True):
        features[..., 1] = clock
        scaled = (target - normaliser.output_mean) / normaliser.output_std
        yield real_points(features, domain.mask).double(), real_points(scaled, domain.mask).double()
