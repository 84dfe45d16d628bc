"""The neural spectral block of LSM against a loop over patches, and its U-Net."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from ono.nn.latent_spectral_unet import LatentSpectralUNet, Norm
from ono.nn.neural_spectral_block import NeuralSpectralBlock, cut, join


def by_patch(block: NeuralSpectralBlock, x: Tensor, patch: tuple[int, ...]) -> Tensor:
    """Return what the block does to each patch, node by node, channel by channel."""
    out = torch.empty_like(x)
    width = x.shape[1]
    heads, _, share = block.latent.shape
    basis = len(block.rates)
    starts = [range(0, n, p) for n, p in zip(x.shape[2:], patch, strict=True)]
    for corner in itertools.product(range(len(x)), *starts):
        spans = [slice(a, a + p) for a, p in zip(corner[1:], patch, strict=True)]
        here: tuple[int | slice, ...] = (corner[0], slice(None), *spans)
        nodes = x[here].reshape(width, -1).mT
        keys_values, queries = block.keys_values(nodes), block.queries(nodes)
        moved = torch.zeros_like(nodes)
        for head in range(heads):
            own = slice(head * share, (head + 1) * share)
            keys, values = keys_values[:, :width][:, own], keys_values[:, width:][:, own]
            z = block.latent[head]
            z = z + torch.softmax(z @ keys.mT, -1) @ values
            step = torch.zeros_like(z)
            for i in range(basis):
                w = block.weights[own]
                step = step + w[:, i] * torch.sin(math.pi * i / basis * z)
                step = step + w[:, basis + i] * torch.cos(math.pi * i / basis * z)
            z = z + step
            moved[:, own] = torch.softmax(queries[:, own] @ z.mT, -1) @ z
        out[here] = (nodes + moved).mT.reshape(out[here].shape)
    return out


@pytest.mark.parametrize(
    ("grid", "patch"), [((6,), (3,)), ((4, 6), (2, 3)), ((4, 2, 6), (2, 1, 3))]
)
def test_block_is_the_same_for_each_patch(grid: tuple[int, ...], patch: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    block = NeuralSpectralBlock(8, basis=5, tokens=3, heads=2).double()
    for parameter in block.parameters():  # leave the small start so that every term matters
        torch.nn.init.normal_(parameter)
    # The constants were rounded to single precision when they were made.
    block.rates = math.pi / 5 * torch.arange(5, dtype=torch.float64)
    x = torch.randn(2, 8, *grid, dtype=torch.float64)
    torch.testing.assert_close(block(x, patch), by_patch(block, x, patch))


def test_join_undoes_cut() -> None:
    x = torch.randn(2, 3, 8, 6, 4)
    pieces = cut(x, (4, 3, 2))
    assert pieces.shape == (2, 2 * 2 * 2, 4 * 3 * 2, 3)
    assert torch.equal(join(pieces, (4, 3, 2), (8, 6, 4)), x)


def unet(norm: Norm = "batch", axes: int = 2, scales: int = 3) -> LatentSpectralUNet:
    torch.manual_seed(0)
    return LatentSpectralUNet(
        8, axes=axes, scales=scales, basis=3, tokens=2, heads=4, norm=norm
    ).double()


@pytest.mark.parametrize(
    ("grid", "patch"),
    [
        ((85, 85), (6, 6)),
        ((64, 64), (4, 4)),
        ((221, 51), (14, 4)),
        ((129, 129), (9, 9)),
        ((101, 31, 20), (7, 2, 2)),
        ((96, 96), (6, 6)),
    ],
)
def test_patches_are_the_published_ones(grid: tuple[int, ...], patch: tuple[int, ...]) -> None:
    assert unet(axes=len(grid), scales=5).patch(grid) == patch


@pytest.mark.parametrize("grid", [(3,), (7, 13), (2, 9), (5, 4, 3)])
@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_unet_works_on_any_grid(grid: tuple[int, ...], norm: Norm) -> None:
    net = unet(norm, axes=len(grid))
    x = torch.randn(1, 8, *grid, dtype=torch.float64)
    assert net(x).shape == x.shape
    assert torch.isfinite(net.eval()(x)).all()


def test_every_scale_and_every_parameter_matters() -> None:
    net = unet()
    x = torch.randn(2, 8, 12, 12, dtype=torch.float64)
    net(x).square().sum().backward()
    silent = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_instance_norm_keeps_samples_apart_in_training() -> None:
    x = torch.randn(3, 8, 9, 9, dtype=torch.float64)
    apart, mixed = unet("instance").train(), unet("batch").train()
    torch.testing.assert_close(apart(x)[:1], apart(x[:1]))
    assert not torch.allclose(mixed(x)[:1], mixed(x[:1]), rtol=1e-3)
    mixed.eval()
    torch.testing.assert_close(mixed(x)[:1], mixed(x[:1]))
