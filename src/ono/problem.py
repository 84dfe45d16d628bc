"""What an operator is built for: how much goes in and out, and on what kind of points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ono.domain import Domain
from ono.errors import ShapeError, UnsupportedDomain

Kind = Literal["grid", "structured", "cloud"]


@dataclass(frozen=True, slots=True)
class Problem:
    """The sizes a model is built from, the same for every model.

    `kind` is a uniform grid, a curvilinear structured mesh or scattered points; the first two
    have a `shape`. `points` is how many a sample has where all have equally many: a network that
    reads its input at fixed sensors needs it.

    >>> Problem(dim=2, in_channels=1, out_channels=1).kind
    'cloud'
    >>> Problem.grid((85, 85), in_channels=1, out_channels=1).points
    7225
    """

    dim: int
    in_channels: int
    out_channels: int
    timed: bool = False
    kind: Kind = "cloud"
    shape: tuple[int, ...] | None = None
    points: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ShapeError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        for name, size, least in (
            ("dim", self.dim, 1),
            ("in_channels", self.in_channels, 0),
            ("out_channels", self.out_channels, 1),
        ):
            if size < least:
                raise ShapeError(f"{name} must be at least {least}, got {size}")

    @classmethod
    def grid(
        cls,
        shape: tuple[int, ...],
        *,
        in_channels: int,
        out_channels: int,
        timed: bool = False,
        kind: Literal["grid", "structured"] = "grid",
    ) -> Problem:
        """Return a problem on a grid, or on a structured mesh in as many coordinates as axes."""
        return cls(
            dim=len(shape),
            in_channels=in_channels,
            out_channels=out_channels,
            timed=timed,
            kind=kind,
            shape=shape,
            points=torch.Size(shape).numel(),
        )

    def refuse_other(
        self, model: str, domain: Domain, values: Tensor, time: Tensor | None = None
    ) -> None:
        """Refuse a call that does not fit what the model was built for."""
        if torch.compiler.is_compiling():
            return
        if values.shape != (domain.batch, domain.points, self.in_channels):
            raise ShapeError(
                f"{model} expected values [{domain.batch} {domain.points} {self.in_channels}] "
                f"(batch, points, input channels), got {list(values.shape)}; coordinates come "
                "from the domain, do not append them to the values"
            )
        if values.dtype != domain.coords.dtype:
            raise ShapeError(
                f"{model} got values in {values.dtype} and coordinates in {domain.coords.dtype}; "
                "give both in the dtype of its weights, which is float32 unless you changed it"
            )
        if domain.dim != self.dim:
            raise ShapeError(f"{model} was built for {self.dim} coordinates, got {domain.dim}")
        if self.timed != (time is not None):
            raise ShapeError(
                f"{model} was built with timed=True and needs a time"
                if self.timed
                else f"{model} was built with timed=False but got a time"
            )

    def shape_of(self, model: str, domain: Domain) -> tuple[int, ...]:
        """Return the logical shape of a domain that must have one."""
        if domain.shape is None:
            raise UnsupportedDomain(
                f"this {model} was built for a mesh of {len(self.shape or ())} axes, got "
                f"{domain.points} scattered points; give the domain its shape"
            )
        return domain.shape
