"""Roe's flux: against the exact flux, its own eigenvectors and automatic differentiation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ono.physics import roe
from ono.physics.roe import GAMMA


def states(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random (rho, u, v, p) from subsonic to supersonic, and random faces."""
    generator = torch.Generator().manual_seed(seed)
    v = torch.rand(4, count, generator=generator, dtype=torch.float64)
    v = torch.stack((0.5 + v[0], 4 * v[1] - 2, 4 * v[2] - 2, 0.5 + v[3]))
    angle = 7 * torch.rand(count, generator=generator, dtype=torch.float64)
    length = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
    width = length * torch.rand(count, generator=generator, dtype=torch.float64)
    return v, torch.stack((angle.cos(), angle.sin(), length, width))


def exact_flux(w: Tensor, face: Tensor) -> Tensor:
    _, x, y, p = roe.primitive(w).unbind()
    nx, ny, length, _ = face.unbind()
    q = x * nx + y * ny
    push = torch.stack((torch.zeros_like(p), nx * p, ny * p, q * p))
    return (w * q + push) * length


def test_variables_come_back() -> None:
    v, _ = states(50)
    assert torch.allclose(roe.primitive(roe.conserved(v)), v, atol=1e-14)


def test_equal_states_give_the_exact_flux() -> None:
    v, face = states(50)
    expected = exact_flux(roe.conserved(v), face)
    assert torch.allclose(roe.roe_flux(v, v, face), expected, atol=1e-13)


def test_supersonic_flux_is_that_of_the_upwind_side() -> None:
    (left, face), (right, _) = states(400), states(400, seed=1)
    for sign in (1.0, -1.0):
        speed = torch.stack((face[0], face[1])) * sign * 4  # 4 is faster than any sound here
        a, b = left.clone(), right.clone()
        a[1:3], b[1:3] = speed, 1.1 * speed
        expected = exact_flux(roe.conserved(a if sign > 0 else b), face)
        assert torch.allclose(roe.roe_flux(a, b, face), expected, atol=1e-11)


def test_flux_is_conservative() -> None:
    (left, face), (right, _) = states(50), states(50, seed=1)
    turned = face * torch.tensor([-1.0, -1.0, 1.0, 1.0])[:, None]
    forth, back = roe.roe_flux(left, right, face), roe.roe_flux(right, left, turned)
    assert torch.allclose(forth, -back, atol=1e-13)


def test_stationary_shock_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roe, "ENTROPY_FIX", 1e-14)  # else it damps the shock's own wave
    mach = 1.5
    density = (GAMMA + 1) * mach**2 / ((GAMMA - 1) * mach**2 + 2)
    pressure = 1 + 2 * GAMMA / (GAMMA + 1) * (mach**2 - 1)
    u = mach * GAMMA**0.5
    ahead = torch.tensor([[1.0], [u], [0.3], [1.0]], dtype=torch.float64)
    behind = torch.tensor([[density], [u / density], [0.3], [pressure]], dtype=torch.float64)
    face = torch.tensor([[1.0], [0.0], [1.0], [1.0]], dtype=torch.float64)
    expected = exact_flux(roe.conserved(ahead), face)
    assert torch.allclose(roe.roe_flux(ahead, behind, face), expected, atol=1e-13)


def test_jacobian_is_the_derivative_of_the_flux() -> None:
    v, face = states(6)
    derivative = torch.autograd.functional.jacobian(lambda w: exact_flux(w, face), roe.conserved(v))
    expected = torch.einsum("anbn->abn", derivative)
    assert torch.allclose(roe.jacobian(v, face), expected, atol=1e-12)


def test_wall_jacobian_is_the_derivative_of_the_push() -> None:
    v, face = states(6)

    def push(w: Tensor) -> Tensor:
        p = roe.primitive(w)[3] * face[2]
        return torch.stack((torch.zeros_like(p), face[0] * p, face[1] * p, torch.zeros_like(p)))

    derivative = torch.autograd.functional.jacobian(push, roe.conserved(v))
    expected = torch.einsum("anbn->abn", derivative)
    assert torch.allclose(roe.wall_jacobian(v, face), expected, atol=1e-12)


@pytest.mark.parametrize("rounded", [0.0, 0.3])
def test_absolute_jacobian_has_the_rounded_eigenvalues(
    monkeypatch: pytest.MonkeyPatch, rounded: float
) -> None:
    monkeypatch.setattr(roe, "ROUNDED", rounded)
    v, face = states(20)
    c, q = (GAMMA * v[3] / v[0]).sqrt(), v[1] * face[0] + v[2] * face[1]
    values, vectors = torch.linalg.eig(roe.jacobian(v, face).permute(2, 0, 1))
    drifts = (values.real - (q * face[2])[:, None]).abs() < 1e-6  # twice q, and q - c, q + c
    assert (drifts.sum(1) == 2).all()
    floor = torch.where(drifts, (c * face[3])[:, None], (c * face[2])[:, None]) * rounded
    size = (values.real**2 + floor**2).sqrt()
    expected = (vectors * size[:, None].to(vectors) @ torch.linalg.inv(vectors)).real
    assert torch.allclose(roe.absolute_jacobian(v, face).permute(2, 0, 1), expected, atol=1e-7)
