"""The Fourier layer: a global and a local linear map, side by side."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ono.nn.spectral import SpectralConv


class FourierLayer(nn.Module):
    """Return K v + W v, and B x where the trunk is told the coordinates x of its nodes.

    The activation is the model's business.

    >>> import torch
    >>> FourierLayer(8, modes=(4, 4))(torch.randn(2, 8, 9, 9)).shape
    torch.Size([2, 8, 9, 9])
    """

    def __init__(self, width: int, modes: tuple[int, ...], *, dim: int = 0) -> None:
        super().__init__()
        self.k = SpectralConv(width, width, modes)
        self.w = nn.Conv1d(width, width, 1)
        self.b = nn.Conv1d(dim, width, 1) if dim else None

    def forward(
        self,
        v: Float[Tensor, "batch width *grid"],
        place: Float[Tensor, " dim *grid"] | None = None,
    ) -> Float[Tensor, "batch width *grid"]:
        """Apply the layer on a grid of any size."""
        moved: Tensor = self.k(v) + self.w(v.flatten(2)).view_as(v)
        if self.b is not None and place is not None:
            moved = moved + self.b(place.flatten(1)).view(-1, *place.shape[1:])
        return moved
