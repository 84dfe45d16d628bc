"""The Fourier layers of F-FNO against convolutions written out."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from ono.nn.factorised_spectral import FactorisedBlocks, FactorisedSpectral
from ono.nn.weight_normed import weight_normed


def circular(x: Tensor, axis: int, weight: Tensor) -> Tensor:
    """Convolve along one axis with the kernel whose spectrum the weights are."""
    size = x.shape[axis]
    place = torch.arange(size, dtype=x.dtype)
    kernel = torch.zeros(size, *weight.shape[1:3], dtype=x.dtype)
    for k in range(min(len(weight), size // 2 + 1)):
        # Frequencies 0 and size/2 are their own mirror images; all others come in pairs.
        pairs = 1 if k == 0 or 2 * k == size else 2
        angle = 2 * torch.pi * k * place / size
        real, imaginary = weight[k].unbind(-1)
        if pairs == 1:
            wave = torch.cos(angle)[:, None, None] * real
        else:
            wave = angle.cos()[:, None, None] * real - angle.sin()[:, None, None] * imaginary
        kernel = kernel + pairs * wave / size
    out = torch.zeros_like(x)
    for shift in range(size):
        out = out + x.roll(shift, axis) @ kernel[shift]
    return out


@pytest.mark.parametrize("form", ["fft", "product"])
@pytest.mark.parametrize(
    ("grid", "modes"),
    [((9,), (3,)), ((8, 7), (3, 4)), ((5, 6), (12, 12)), ((6, 4, 5), (2, 3, 2))],
)
def test_filter_is_a_sum_of_circular_convolutions(
    grid: tuple[int, ...], modes: tuple[int, ...], form: Literal["fft", "product"]
) -> None:
    torch.manual_seed(0)
    filter = FactorisedSpectral(4, modes, form).double()
    x = torch.randn(2, *grid, 4, dtype=torch.float64)
    expected = torch.zeros_like(x)
    for axis, weight in enumerate(filter.parameters(), 1):
        expected = expected + circular(x, axis, weight)
    torch.testing.assert_close(filter(x), expected)


def test_filter_is_the_same_operator_on_a_finer_grid() -> None:
    def wave(n: int) -> Tensor:
        x = torch.arange(n, dtype=torch.float64) / n
        field = torch.sin(2 * torch.pi * x)[:, None] * torch.cos(4 * torch.pi * x)
        return field[None, ..., None].expand(1, n, n, 3)

    torch.manual_seed(0)
    filter = FactorisedSpectral(3, (4, 4)).double()
    torch.testing.assert_close(filter(wave(36))[:, ::4, ::4], filter(wave(9)))


@pytest.mark.parametrize("shared", [False, True])
def test_blocks_follow_the_formula(shared: bool) -> None:
    torch.manual_seed(0)
    blocks = FactorisedBlocks(4, (3, 2), 3, factor=2, shared=shared)
    x = torch.randn(2, 7, 5, 4)
    out, b = blocks(x)
    for layer in range(3):
        filter = blocks.filters[0 if shared else layer]
        ffn = blocks.ffns[layer]
        last = ffn[2](torch.relu(ffn[0](filter(x))))  # type: ignore[index]
        x = x + last
    torch.testing.assert_close(out, x)
    torch.testing.assert_close(b, last)
    assert len(blocks.filters) == (1 if shared else 3)


def test_blocks_are_told_the_place_in_every_layer() -> None:
    blocks = FactorisedBlocks(4, (3, 2), 2, factor=2, shared=False)
    for parameter in blocks.ffns.parameters():
        torch.nn.init.ones_(parameter)
    for name, parameter in blocks.ffns.named_parameters():
        if "original0" in name or "bias" in name:  # lengths of weights; the layers say nothing
            torch.nn.init.zeros_(parameter)
    x, place = torch.zeros(1, 6, 6, 4), torch.randn(1, 6, 6, 4)
    torch.testing.assert_close(blocks(x, place)[0], 2 * place)


def test_weight_norm_separates_length_and_direction() -> None:
    layer = weight_normed(5, 3)
    parts = dict(layer.named_parameters())
    length = parts["parametrizations.weight.original0"]
    direction = parts["parametrizations.weight.original1"]
    x = torch.randn(4, 5)
    unit = direction / direction.norm(dim=1, keepdim=True)
    torch.testing.assert_close(layer(x), x @ (length * unit).mT + parts["bias"])


def test_spectra_stay_in_float32_under_autocast() -> None:
    filter = FactorisedSpectral(4, (3, 3))
    x = torch.randn(2, 8, 8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        out = filter(x)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, filter(x))
