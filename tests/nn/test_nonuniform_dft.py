"""Fourier series at scattered places."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ono.nn.deformation import Deformation, polar_features
from ono.nn.measure import Measure
from ono.nn.nonuniform_dft import analyse_at, synthesise_at
from ono.nn.spectral import analyse, kept_modes, synthesise


def torus(*grid: int) -> Tensor:
    axes = [torch.arange(n, dtype=torch.float64) / n for n in grid]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(1, -1, len(grid))


@pytest.mark.parametrize(
    ("grid", "modes"), [((12,), (4,)), ((9, 12), (4, 5)), ((6, 7, 8), (2, 3, 3))]
)
def test_uniform_places_give_the_modes_of_the_fft(
    grid: tuple[int, ...], modes: tuple[int, ...]
) -> None:
    v = torch.randn(2, 3, *grid, dtype=torch.float64)
    kept = kept_modes(grid, modes)
    places = torus(*grid).expand(2, -1, -1)
    real, imaginary = analyse_at(v.flatten(2).mT, places, kept, Measure())
    expected = analyse(v, modes)
    torch.testing.assert_close(torch.complex(real, imaginary), expected)
    back = synthesise_at((real, imaginary), places)
    torch.testing.assert_close(back.mT.reshape_as(v), synthesise(expected, grid))


@pytest.mark.parametrize("wave", [(0, 0), (1, 0), (-3, 0), (0, 2), (2, 3), (-2, 3), (-1, 1)])
def test_a_real_plane_wave_passes_unchanged(wave: tuple[int, int]) -> None:
    def plane(x: Tensor) -> Tensor:
        return torch.cos(2 * math.pi * (x @ torch.tensor(wave).double()) + 0.4)[..., None]

    points = torus(11, 13)
    points = points[:, torch.randperm(points.shape[1])]
    coefficients = analyse_at(plane(points), points, (8, 4), Measure())
    elsewhere = torch.rand(1, 20, 2, dtype=torch.float64)
    torch.testing.assert_close(synthesise_at(coefficients, elsewhere), plane(elsewhere))


def test_weights_decide_how_much_a_point_counts() -> None:
    u, places = torch.randn(2, 5, 3), torch.rand(2, 5, 2)
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.0], [0.5, 0.5, 0.0, 0.0, 0.0]])
    weighed = analyse_at(u, places, (4, 2), Measure(weights))
    for sample, count in ((0, 4), (1, 2)):
        some = slice(sample, sample + 1)
        alone = analyse_at(u[some, :count], places[some, :count], (4, 2), Measure())
        for ours, theirs in zip(weighed, alone, strict=True):
            torch.testing.assert_close(ours[some], theirs)


def test_places_in_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    coefficients = (torch.randn(2, 3, 4, 2), torch.randn(2, 3, 4, 2))
    places = torch.rand(2, 9, 2)
    whole = synthesise_at(coefficients, places)
    monkeypatch.setattr("ono.nn.nonuniform_dft._NUMBERS_AT_ONCE", 64)
    torch.testing.assert_close(synthesise_at(coefficients, places), whole)


def test_deformation_has_the_published_size() -> None:
    """63,746 with a code of the boundary: less its layer of 42 · 32 + 32."""
    assert sum(p.numel() for p in Deformation(2).parameters()) == 63_746 - 1_376


def test_deformation_without_its_network_is_the_identity() -> None:
    deformation = Deformation(2)
    last = deformation.net[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.constant_(last.bias, 0.5)
    x = torch.rand(2, 7, 2)
    torch.testing.assert_close(deformation(x), 1.5 * x)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_angles_and_distance_place_a_point(dim: int) -> None:
    x = torch.rand(2, 9, dim, dtype=torch.float64)
    seen = polar_features(x)
    assert seen.shape == (2, 9, 2 * dim)
    *angles, r = seen[..., dim:].unbind(-1)
    torch.testing.assert_close(r, (x - 0.5).norm(dim=-1))
    if dim == 3:
        around, polar = angles
        rebuilt = torch.stack(
            (r * polar.sin() * around.cos(), r * polar.sin() * around.sin(), r * polar.cos()), -1
        )
        torch.testing.assert_close(rebuilt, x - 0.5)
    assert Deformation(dim, 8).double()(x).shape == x.shape
