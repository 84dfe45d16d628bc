"""Fluxes of the Euler equations through faces: Roe's upwind flux and its Jacobians in closed form.

Arrays hold their components first: primitive variables (rho, u, v, p), conserved ones
(rho, rho u, rho v, rho E), faces (nx, ny, length, width) with a unit normal, and for width the
lesser of the length and the width of the cells on both sides. With the enthalpy H,
k = (u² + v²) / 2, the normal velocity q, and

    h = (1, u, v, H),    P = (gamma - 1) (k, -u, -v, 1),
    n = (0, nx, ny, q),  N = (-q, nx, ny, 0),

P and N turn a small change of the conserved variables into those of p and of rho q. Any matrix
with the eigenvectors of the flux Jacobian and eigenvalues l0 (twice), l+, l- is

    l0 I + h (d1 P / c² + d2 N / c)^T + n (d2 P / c + d1 N)^T,
    d1 = (l+ + l-) / 2 - l0,    d2 = (l+ - l-) / 2.

The Jacobian itself has q, q + c, q - c, hence d1 = 0 and d2 = c: it is q I + h N^T + n P^T.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

GAMMA = 1.4
ENTROPY_FIX = 0.1  # acoustic waves slower than this times c are damped as if faster (Harten)
ROUNDED = 0.3  # the same for the matrix, where all |l| are smooth: sqrt(l² + (0.3 c)²)


def conserved(v: Float[Tensor, 4 * cells]) -> Float[Tensor, 4 * cells]:
    """Return (rho, rho u, rho v, rho E) for (rho, u, v, p)."""
    rho, x, y, p = v.unbind()
    return torch.stack((rho, rho * x, rho * y, p / (GAMMA - 1) + rho * (x * x + y * y) / 2))


def primitive(w: Float[Tensor, 4 * cells]) -> Float[Tensor, 4 * cells]:
    """Return (rho, u, v, p) for (rho, rho u, rho v, rho E).

    >>> v = torch.tensor([1.0, 0.5, 0.25, 2.0])
    >>> primitive(conserved(v)).tolist()
    [1.0, 0.5, 0.25, 2.0]
    """
    rho, mx, my, energy = w.unbind()
    x, y = mx / rho, my / rho
    return torch.stack((rho, x, y, (GAMMA - 1) * (energy - (mx * x + my * y) / 2)))


def _enthalpy(v: Tensor) -> Tensor:
    rho, x, y, p = v.unbind()
    return p / rho * (GAMMA / (GAMMA - 1)) + (x * x + y * y) / 2


def roe_flux(
    left: Float[Tensor, 4 * faces],
    right: Float[Tensor, 4 * faces],
    face: Float[Tensor, 4 * faces],
) -> Float[Tensor, 4 * faces]:
    """Return the flux through faces whose normals point from left to right.

    F = [F(left) + F(right) - |A| (w_right - w_left)] length / 2 with A at Roe's average.
    """
    nx, ny, length, _ = face.unbind()
    (rho_l, u_l, v_l, p_l), (rho_r, u_r, v_r, p_r) = left.unbind(), right.unbind()
    h_l, h_r = _enthalpy(left), _enthalpy(right)
    q_l, q_r = u_l * nx + v_l * ny, u_r * nx + v_r * ny
    weight = 1 / (1 + (rho_r / rho_l).sqrt())  # of the left
    u, v, h = (
        torch.lerp(u_r, u_l, weight),
        torch.lerp(v_r, v_l, weight),
        torch.lerp(h_r, h_l, weight),
    )
    q = u * nx + v * ny
    c = ((GAMMA - 1) * (h - (u * u + v * v) / 2)).sqrt()

    slow, floor = q.abs(), ENTROPY_FIX * c
    plus, minus = (q + c).abs(), (q - c).abs()
    plus = torch.where(plus < floor, (plus * plus / floor + floor) / 2, plus)
    minus = torch.where(minus < floor, (minus * minus / floor + floor) / 2, minus)
    d1, d2 = (plus + minus) / 2 - slow, (plus - minus) / (2 * c)
    dp = p_r - p_l
    dq = (rho_l * rho_r).sqrt() * (q_r - q_l)
    along_h = d1 * dp / (c * c) + d2 * dq
    along_n = d2 * dp + d1 * dq

    m_l, m_r = rho_l * q_l, rho_r * q_r  # mass fluxes
    s_l, s_r = m_l + slow * rho_l, m_r - slow * rho_r
    p = p_l + p_r - along_n
    flux = torch.stack(
        (
            s_l + s_r - along_h,
            s_l * u_l + s_r * u_r - along_h * u + p * nx,
            s_l * v_l + s_r * v_r - along_h * v + p * ny,
            # |q| acts on rho E = rho H - p.
            s_l * h_l + s_r * h_r + slow * dp - along_h * h - along_n * q,
        )
    )
    return flux * (length / 2)


def _outer(diagonal: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Return diagonal I + a b^T + c d^T."""
    matrix = a[:, None] * b
    matrix.addcmul_(c[:, None], d)
    for row in range(len(a)):
        matrix[row, row] += diagonal
    return matrix


def _vectors(v: Tensor, nx: Tensor, ny: Tensor) -> tuple[Tensor, ...]:
    """Return q, h, P, n and N."""
    _, x, y, _ = v.unbind()
    q, zero, one = x * nx + y * ny, torch.zeros_like(x), torch.ones_like(x)
    h = torch.stack((one, x, y, _enthalpy(v)))
    p = (GAMMA - 1) * torch.stack(((x * x + y * y) / 2, -x, -y, one))
    return q, h, p, torch.stack((zero, nx, ny, q)), torch.stack((-q, nx, ny, zero))


def jacobian(
    v: Float[Tensor, 4 * faces], face: Float[Tensor, 4 * faces]
) -> Float[Tensor, "4 4 *faces"]:
    """Return the derivative of the flux F(v) length by the conserved variables."""
    nx, ny, length, _ = face.unbind()
    q, h, p, n, normal = _vectors(v, nx * length, ny * length)
    return _outer(q, h, normal, n, p)


def wall_jacobian(
    v: Float[Tensor, 4 * faces], face: Float[Tensor, 4 * faces]
) -> Float[Tensor, "4 4 *faces"]:
    """Return the derivative of the flux through a wall, (0, nx p, ny p, 0) length."""
    nx, ny, length, _ = face.unbind()
    _, _, p, _, _ = _vectors(v, nx, ny)
    zero = torch.zeros_like(nx)
    return torch.stack((zero, nx * length, ny * length, zero))[:, None] * p


def absolute_jacobian(
    v: Float[Tensor, 4 * faces], face: Float[Tensor, 4 * faces]
) -> Float[Tensor, "4 4 *faces"]:
    """Return |A| length, with the eigenvalues rounded at zero.

    Rounding keeps steps stable where the flow stagnates. But what drifts along a long face must
    not be held by it: there |q| is rounded as if the face were as short as the cells are wide.
    """
    nx, ny, length, width = face.unbind()
    rho, _, _, pressure = v.unbind()
    q, h, p, n, normal = _vectors(v, nx, ny)
    c2 = GAMMA * pressure / rho
    c, floor = c2.sqrt(), ROUNDED**2 * c2
    slow = (q * q + floor * (width / length) ** 2).sqrt()
    plus, minus = ((q + c) ** 2 + floor).sqrt(), ((q - c) ** 2 + floor).sqrt()
    d1, d2 = length * ((plus + minus) / 2 - slow), length * (plus - minus) / (2 * c)
    along_h = d1 / c2 * p + d2 * normal
    along_n = d2 * p + d1 * normal
    return _outer(slow * length, h, along_h, n, along_n)
