"""Where values live: points, and what is known about them.

Shape legend used everywhere: batch points queries dim channels width eigen heads modes time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ono.errors import ShapeError


@dataclass(frozen=True, slots=True)
class Domain:
    """Points of a batch of samples. A grid is points that also know their `shape`.

    `weights` are quadrature weights that sum to one in each sample; `mask` is true where a point
    is real and false where it pads a ragged batch. On a `periodic` grid the first node of an axis
    follows the last. What stands in padding does not matter as long as it is finite.

    >>> domain = Domain.grid((3, 3), batch=2)
    >>> domain.coords.shape, domain.shape
    (torch.Size([2, 9, 2]), (3, 3))
    """

    coords: Float[Tensor, "batch points dim"]
    shape: tuple[int, ...] | None = None
    weights: Float[Tensor, "batch points"] | None = None
    mask: Bool[Tensor, "batch points"] | None = None
    periodic: bool = False

    def __post_init__(self) -> None:
        if torch.compiler.is_compiling():
            return
        if self.coords.ndim != 3:
            raise ShapeError(
                f"domain coords must be [batch points dim], got shape {list(self.coords.shape)}; "
                "add a leading axis of one for a single sample"
            )
        batch, points, _ = self.coords.shape
        if self.shape is not None and torch.Size(self.shape).numel() != points:
            raise ShapeError(
                f"domain shape {self.shape} has {torch.Size(self.shape).numel()} points, "
                f"coords have {points}"
            )
        for name, extra in (("weights", self.weights), ("mask", self.mask)):
            if extra is not None and extra.shape != (batch, points):
                raise ShapeError(
                    f"domain {name} must be [{batch}, {points}] like the coords, "
                    f"got {list(extra.shape)}"
                )

    @classmethod
    def grid(
        cls,
        shape: tuple[int, ...],
        *,
        batch: int = 1,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Domain:
        """Return the nodes of a uniform grid on the unit cube, first axis slowest.

        Its weights are those of the trapezoidal rule.
        """
        if not shape or min(shape) < 1:
            raise ShapeError(f"a grid has at least one node along each axis, got shape {shape}")
        axes = [torch.linspace(0, 1, n, device=device, dtype=dtype) for n in shape]
        coords = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(shape))
        weights = trapezoidal(shape).to(device, dtype)
        return cls(coords.expand(batch, -1, -1), shape, weights.expand(batch, -1))

    @property
    def batch(self) -> int:
        """How many samples."""
        return self.coords.shape[0]

    @property
    def points(self) -> int:
        """How many points a sample has, padding included."""
        return self.coords.shape[1]

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.coords.shape[2]

    def take(self, order: Int[Tensor, " queries"]) -> Domain:
        """Return the chosen points in the given order, as a point cloud."""

        def pick(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[:, order]

        return Domain(self.coords[:, order], None, pick(self.weights), pick(self.mask))

    def repeat(self, times: int) -> Domain:
        """Return every sample so many times in a row.

        >>> Domain.grid((3, 3), batch=2).repeat(5).batch
        10
        """

        def again(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.repeat_interleave(times, 0)

        coords = self.coords.repeat_interleave(times, 0)
        return Domain(coords, self.shape, again(self.weights), again(self.mask), self.periodic)

    def to(self, device: torch.device | str) -> Domain:
        """Return this domain on another device."""

        def move(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device, non_blocking=True)

        return Domain(
            self.coords.to(device, non_blocking=True),
            self.shape,
            move(self.weights),
            move(self.mask),
            self.periodic,
        )

    def measure(self, *, quadrature: bool = True) -> Float[Tensor, "batch points"] | None:
        """Return weights that sum to one over the real points of each sample.

        None stands for the uniform measure without padding, which most code can do faster.
        """
        weights = self.weights if quadrature else None
        if self.mask is None and weights is None:
            return None
        real = torch.ones_like(self.coords[..., 0]) if weights is None else weights
        if self.mask is not None:
            real = real * self.mask
        return real / real.sum(-1, keepdim=True).clamp_min(torch.finfo(real.dtype).tiny)


def trapezoidal(shape: tuple[int, ...]) -> Float[Tensor, " points"]:
    """Return the weights of the trapezoidal rule on a uniform grid; they sum to one.

    With them, inner products on a coarse and on a fine grid differ by O(h²); with equal weights
    the boundary counts too much and they differ by O(h).

    >>> trapezoidal((3,)).tolist()
    [0.25, 0.5, 0.25]
    """
    weights = torch.ones(1, dtype=torch.float64)
    for nodes in shape:
        axis = torch.ones(nodes, dtype=torch.float64)
        axis[0] = axis[-1] = 0.5
        weights = torch.outer(weights, axis / axis.sum()).flatten()
    return weights.float()
