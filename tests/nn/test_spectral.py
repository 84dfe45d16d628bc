"""The spectral convolution is a convolution, on every grid and in every form."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from ono.nn.fourier_layer import FourierLayer
from ono.nn.spectral import SpectralConv, analyse, kept_modes, synthesise

GRIDS = [
    ((16,), (5,)),
    ((9, 14), (4, 4)),
    ((6, 5), (3, 3)),
    ((5, 6), (12, 12)),
    ((1, 4), (3, 3)),
    ((7, 8, 5), (3, 4, 2)),
]


def conv(inputs: int, outputs: int, modes: tuple[int, ...]) -> SpectralConv:
    torch.manual_seed(0)
    return SpectralConv(inputs, outputs, modes).double()


def field(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def kernel(layer: SpectralConv, distance: Tensor) -> Tensor:
    """Return κ(d) [in out] = Σ_k Re(R_k e^{2πi k·d}), with k and -k both counted."""
    m1, m2 = layer.modes
    total = torch.zeros(layer.weight.shape[-3:-1], dtype=torch.float64)
    for (row, k1), k2 in itertools.product(enumerate([*range(m1), *range(-m1, 0)]), range(m2)):
        phase = 2 * math.pi * (k1 * distance[0] + k2 * distance[1])
        r = torch.view_as_complex(layer.weight.detach())[row, k2]
        total += (1 if k2 == 0 else 2) * (r * torch.exp(1j * phase)).real
    return total


def test_layer_is_the_periodic_convolution_with_its_kernel() -> None:
    layer, (n1, n2) = conv(2, 3, (2, 2)), (5, 4)
    v = field(1, 2, n1, n2)
    expected = torch.zeros(1, 3, n1, n2, dtype=torch.float64)
    nodes = list(itertools.product(range(n1), range(n2)))
    for (i, j), (p, q) in itertools.product(nodes, nodes):
        kappa = kernel(layer, torch.tensor([(i - p) / n1, (j - q) / n2], dtype=torch.float64))
        expected[0, :, i, j] += v[0, :, p, q] @ kappa / (n1 * n2)
    torch.testing.assert_close(layer(v), expected)


def test_layer_is_the_published_one() -> None:
    """Two corners of a full two-dimensional transform."""
    layer, (m1, m2), grid = conv(3, 5, (4, 5)), (4, 5), (9, 14)
    v, weight = field(2, 3, *grid), torch.view_as_complex(layer.weight)
    spectrum = torch.fft.rfft2(v)
    out = torch.zeros(2, 5, 9, 8, dtype=torch.complex128)
    out[:, :, :m1, :m2] = torch.einsum("bixy,xyio->boxy", spectrum[:, :, :m1, :m2], weight[:m1])
    out[:, :, -m1:, :m2] = torch.einsum("bixy,xyio->boxy", spectrum[:, :, -m1:, :m2], weight[m1:])
    torch.testing.assert_close(layer(v), torch.fft.irfft2(out, s=grid))


@pytest.mark.parametrize(("grid", "modes"), GRIDS)
def test_matrix_products_give_the_same(grid: tuple[int, ...], modes: tuple[int, ...]) -> None:
    layer = SpectralConv(3, 5, modes)
    v = torch.randn(2, 3, *grid)
    fast = layer(v)
    layer.form = "product"
    slow = layer(v)
    torch.testing.assert_close(slow, fast, rtol=1e-5, atol=1e-5)
    ours, theirs = (torch.autograd.grad(x.square().sum(), layer.weight)[0] for x in (fast, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grid", [grid for grid, _ in GRIDS])
def test_all_modes_keep_the_field(grid: tuple[int, ...]) -> None:
    v = field(2, 3, *grid)
    torch.testing.assert_close(synthesise(analyse(v, grid), grid), v)


def test_a_band_limited_field_gives_the_same_function_on_every_grid() -> None:
    layer = conv(2, 2, (3, 3))
    start = torch.complex(field(1, 2, 6, 3), field(1, 2, 6, 3))
    coarse, fine = (layer(synthesise(start, (n, n))) for n in (33, 65))
    torch.testing.assert_close(analyse(coarse, (3, 3)), analyse(fine, (3, 3)))
    # Every second of 66 nodes is one of 33.
    finer = layer(synthesise(start, (66, 66)))[..., ::2, ::2]
    torch.testing.assert_close(finer, coarse)


def test_modes_a_grid_cannot_carry_are_left_out() -> None:
    assert kept_modes((64, 31), (12, 20)) == (24, 16)
    layer = conv(1, 1, (12, 12))
    layer(field(1, 1, 5, 6)).sum().backward()
    assert layer.weight.grad is not None
    assert torch.count_nonzero(layer.weight.grad.abs().sum((-1, -2, -3))) <= 5 * 4


def test_start_is_the_published_one() -> None:
    weight = SpectralConv(4, 8, (12, 12)).weight.detach()
    assert weight.shape == (24, 12, 4, 8, 2)
    assert float(weight.min()) >= 0
    assert 0.99 / 32 < float(weight.max()) <= 1 / 32


@pytest.mark.parametrize("form", ["fft", "product"])
def test_autocast_does_not_reach_the_transforms(form: str) -> None:
    layer = SpectralConv(3, 3, (4, 4))
    layer.form = "product" if form == "product" else "fft"
    v = torch.randn(2, 3, 12, 12)
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(v.bfloat16())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, layer(v.bfloat16().float()))


def test_fourier_layer_adds_a_map_of_each_node() -> None:
    layer = FourierLayer(4, (3, 3), dim=2).double()
    v, place = field(2, 4, 8, 9), field(2, 8, 9)
    local = torch.einsum("oi,bixy->boxy", layer.w.weight[..., 0], v)
    assert layer.w.bias is not None
    expected = layer.k(v) + local + layer.w.bias[:, None, None]
    torch.testing.assert_close(layer(v), expected)
    assert layer.b is not None
    assert layer.b.bias is not None
    told = torch.einsum("oi,ixy->oxy", layer.b.weight[..., 0], place)
    torch.testing.assert_close(layer(v, place), expected + told + layer.b.bias[:, None, None])
