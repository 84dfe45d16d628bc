"""A rubber square with a void, clamped at the bottom and pulled at the top: points -> stress.

The void around the centre (1/2, 1/2) has the radius r(phi), phi counter-clockwise from +x,

    r = 0.2 + 0.2 / (1 + e^z),
    z = sum over k = 1..5 of [theta_2k-1 cos k phi + theta_2k sin k phi] / (sqrt(pi) (k² + 9)),

with theta ~ N(0, 16²). The rubber is an incompressible Mooney-Rivlin solid in plane stress:
with the deformation gradient F in the plane, J = det F and the stretch 1/J across it,

    W = C1 (I1 - 3) + C2 (I2 - 3),    I1 = F:F + 1/J²,    I2 = J² + F:F / J².

`solve` minimises the energy with nine-node quadrilaterals (Q2, 3x3 Gauss points) on an O-mesh,
and returns the von Mises Cauchy stress at 972 points that move with the void.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from ono.errors import DataError, ShapeError
from ono.physics import block_tridiagonal
from ono.physics.o_mesh import Mesh, node_positions, o_mesh, point_positions

C1, C2 = 1.863e5, 9.79e3
LOAD = 100.0  # the traction (0, LOAD) on the top side
PARAMETERS, DEVIATION = 10, 16.0
ANGULAR, RADIAL = 36, 26  # elements around the void, and from it to the sides
ACCEPTED = 1e-9  # a sample has converged if its true relative residual is at most this

# Matrix entries of the samples solved together (one of the usual mesh has 3.4 million).
CHUNK = {"cpu": 2**22, "cuda": 2**30}


def void_parameters(seed: int, index: int, attempt: int = 0) -> NDArray[np.float64]:
    """Draw theta of one void; nothing but the three numbers decides it.

    >>> void_parameters(seed=0, index=7).shape
    (10,)
    """
    stream = np.random.Philox(np.random.SeedSequence((seed, index, attempt)))
    return DEVIATION * np.random.Generator(stream).standard_normal(PARAMETERS)


def void_radius(
    theta: Float[Tensor, "batch parameters"], phi: Float[Tensor, " angles"]
) -> Float[Tensor, "batch angles"]:
    """Return r(phi), between 0.2 and 0.4.

    >>> void_radius(torch.zeros(1, 10), torch.zeros(1)).tolist()
    [[0.30000001192092896]]
    """
    k = torch.arange(1, PARAMETERS // 2 + 1, dtype=phi.dtype, device=phi.device)[:, None]
    waves = torch.stack(((k * phi).cos(), (k * phi).sin()), 1)
    waves /= math.sqrt(math.pi) * (k**2 + 9)[:, None]
    return 0.2 + 0.2 * torch.sigmoid(-theta @ waves.flatten(0, 1))


@dataclass(frozen=True, slots=True)
class Solution:
    """The stress at the points, with the evidence that it is one."""

    points: Float[Tensor, "batch points 2"]
    stress: Float[Tensor, "batch points"]
    residual: Float[Tensor, " batch"]  # unbalanced force over applied force, after the last step
    iterations: Int[Tensor, " batch"]
    converged: Bool[Tensor, " batch"]


def gradients(
    mesh: Mesh, x: Float[Tensor, "batch nodes 2"]
) -> tuple[Float[Tensor, "batch elements 9 9 2"], Float[Tensor, "batch elements 9"]]:
    """Return the gradients of the nine functions and the volume, at each Gauss point."""
    a = torch.einsum("gnk,benc->begck", mesh.slope, x[:, mesh.nodes])
    det = a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]
    inverse = _cofactor(a).mT / det[..., None, None]
    return torch.einsum("gnk,begkc->begnc", mesh.slope, inverse), det * mesh.weight


def _cofactor(a: Tensor) -> Tensor:
    """Return cof A = tr(A) I - A^T of 2x2 matrices."""
    trace = a.diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace[..., None, None] * torch.eye(2, dtype=a.dtype, device=a.device) - a.mT


def first_piola(h: Float[Tensor, "*points 2 2"]) -> Float[Tensor, "*points 2 2"]:
    """Return P = dW/dF at F = I + H, accurate to the last digits however small H is.

    P = 2 (C1 + C2 / J²) F + (-2 C1 / J³ + 2 C2 J - 2 C2 (F:F) / J³) cof F is a difference of
    numbers of size C1, while the load is 2000 times smaller. With j = J - 1 = tr H + det H,

        P / 2 = (C1 + C2 / J²) (F - cof F) + [C1 (1 - J^-3) + C2 (J + J⁴ - F:F) J^-3] cof F,
        J + J⁴ - F:F = 3 j + 6 j² + 4 j³ + j⁴ + 2 det H - H:H.
    """
    cofactor = _cofactor(h)
    det = h[..., 0, 0] * h[..., 1, 1] - h[..., 0, 1] * h[..., 1, 0]
    j = h[..., 0, 0] + h[..., 1, 1] + det
    excess = j * (3 + j * (6 + j * (4 + j))) + 2 * det - h.square().sum((-2, -1))
    shrink = torch.expm1(-3 * torch.log1p(j))  # J^-3 - 1
    pressure = -C1 * shrink + C2 * excess * (1 + shrink)
    eye = torch.eye(2, dtype=h.dtype, device=h.device)
    shear = (C1 + C2 / (1 + j).square())[..., None, None] * (h - cofactor)
    return 2 * (shear + pressure[..., None, None] * (eye + cofactor))


def displacement_gradient(mesh: Mesh, gradient: Tensor, u: Tensor) -> Tensor:
    """Return H = du/dx at the Gauss points."""
    return torch.einsum("benc,begnk->begck", u[:, mesh.nodes], gradient)


def internal_force(
    mesh: Mesh, gradient: Tensor, volume: Tensor, u: Float[Tensor, "batch nodes 2"]
) -> Float[Tensor, "batch nodes 2"]:
    """Return the derivative of the elastic energy by u: the sum over Gauss points of P grad N."""
    stress = first_piola(displacement_gradient(mesh, gradient, u)) * volume[..., None, None]
    force = torch.einsum("begck,begnk->benc", stress, gradient)
    return torch.zeros_like(u).index_add_(1, mesh.nodes.flatten(), force.flatten(1, 2))


def stiffness(
    mesh: Mesh, gradient: Tensor, volume: Tensor
) -> Float[Tensor, "batch blocks rows unknowns"]:
    """Return the derivative of `internal_force` at rest, as panels of a block-tridiagonal matrix.

    At F = I the tangent is Hooke's law of plane stress with E = 6 (C1 + C2) and nu = 1/2,

        dP = (C1 + C2) [2 (dF + dF^T) + 4 tr(dF) I].

    Rows and columns of clamped unknowns become those of the identity.
    """
    batch = len(volume)
    g = gradient.flatten(-2)
    m = (g.mT @ (volume[..., None] * g)).unflatten(-1, (9, 2)).unflatten(-3, (9, 2))
    k = 4 * m + 2 * m.transpose(-3, -1)  # m[a, c, b, d]: the integral of dN_a/dx_c dN_b/dx_d
    same = 2 * (m[..., 0, :, 0] + m[..., 1, :, 1])
    for c in range(2):
        k[..., c, :, c] += same
    free = mesh.free[mesh.nodes]
    k = (C1 + C2) * k * free[:, :, :, None, None] * free[:, None, None]
    panels = k.new_zeros(batch, math.prod(mesh.panels))
    panels.index_add_(1, mesh.slot, k.reshape(batch, -1)[:, mesh.kept])
    result: Tensor = panels.view(batch, *mesh.panels)
    size = mesh.panels[-1]
    clamped = (~mesh.free).reshape(-1, size).to(result)
    result[:, :, :size].diagonal(dim1=-2, dim2=-1).add_(clamped)
    return result


def equilibrium(
    mesh: Mesh,
    gradient: Tensor,
    volume: Tensor,
    load: float,
    tolerance: float,
    limit: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return u with internal_force(u) = load on the free nodes, the residual, the iterations.

    Modified Newton: strains are at most of order 1e-3, so the stiffness at rest serves every step
    and gains two digits or more each time. A sample that has arrived is frozen.
    """
    factor = block_tridiagonal.factor(stiffness(mesh, gradient, volume))
    applied = load * mesh.pull
    u = applied.new_zeros(len(volume), *applied.shape)
    iterations = torch.zeros(len(volume), dtype=torch.int64, device=u.device)
    while True:
        left = (applied - internal_force(mesh, gradient, volume, u)) * mesh.free
        residual = left.flatten(1).norm(dim=1) / applied.norm()
        active = (residual > tolerance) & (iterations < limit)  # a NaN is not active
        if not active.any():
            return u, residual, iterations
        step = factor.solve(left.flatten(1)).reshape_as(u)
        u = torch.where(active[:, None, None], u + step, u)
        iterations += active


def nodal_stress(
    mesh: Mesh, gradient: Tensor, u: Float[Tensor, "batch nodes 2"]
) -> Float[Tensor, "batch nodes 2 2"]:
    """Return the Cauchy stress P F^T, carried from Gauss points to nodes and averaged there."""
    h = displacement_gradient(mesh, gradient, u)
    p = first_piola(h)
    cauchy = p + p @ h.mT
    # Nine Gauss values fix the biquadratic, hence its values at the nodes of the element.
    carried = torch.einsum("ng,begck->benck", torch.linalg.inv(mesh.shape), cauchy)
    meet = torch.bincount(mesh.nodes.flatten(), minlength=u.shape[1]).clamp_min(1)
    total = u.new_zeros(*u.shape, 2).index_add_(1, mesh.nodes.flatten(), carried.flatten(1, 2))
    return total / meet[:, None, None]


def von_mises(stress: Float[Tensor, "*points 2 2"]) -> Float[Tensor, "*points"]:
    """Return sqrt(s_xx² - s_xx s_yy + s_yy² + 3 s_xy²), the scalar stress of plane stress."""
    xx, yy, xy = stress[..., 0, 0], stress[..., 1, 1], stress[..., 0, 1]
    return (xx**2 - xx * yy + yy**2 + 3 * xy**2).sqrt()


@torch.no_grad()
def solve_void(
    radius: Float[Tensor, "batch angles"],
    mesh: Mesh,
    *,
    load: float = LOAD,
    tolerance: float = 1e-10,
    limit: int = 20,
) -> Solution:
    """Solve for voids given by their radius at `mesh.angles`."""
    bad = ~((radius > 0) & (radius < 0.5)).all(1)
    if bad.any():
        which = bad.nonzero().flatten().tolist()
        raise DataError(
            f"a void must have a radius between 0 and 0.5; {len(which)} of {len(radius)} samples "
            f"do not, the first at batch index {which[0]}"
        )
    points = point_positions(mesh, radius)
    stress, residual = points.new_empty(points.shape[:2]), points.new_empty(len(points))
    iterations = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    valid = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    chunk = max(1, CHUNK[radius.device.type] // math.prod(mesh.panels))
    for start in range(0, len(radius), chunk):
        part = slice(start, start + chunk)
        gradient, volume = gradients(mesh, node_positions(mesh, radius[part]))
        valid[part] = (volume > 0).all(2).all(1)  # no element is folded over
        u, residual[part], iterations[part] = equilibrium(
            mesh, gradient, volume, load, tolerance, limit
        )
        at_nodes = nodal_stress(mesh, gradient, u)[:, mesh.point_nodes]
        stress[part] = von_mises(torch.einsum("pn,bpnck->bpck", mesh.point_shape, at_nodes))
    return Solution(points, stress, residual, iterations, valid & (residual <= ACCEPTED))


def solve(
    theta: Float[Tensor, "batch parameters"],
    *,
    angular: int = ANGULAR,
    radial: int = RADIAL,
    load: float = LOAD,
    tolerance: float = 1e-10,
    limit: int = 20,
) -> Solution:
    """Return points and stress for voids given by theta, in float64 on the device of theta.

    The points are the 3x3 Gauss points of 36 x 3 elements, wedge by wedge from phi = pi/4 on,
    whatever the mesh of `angular` x `radial` elements that the equations are solved on.

    >>> solution = solve(torch.zeros(1, 10), angular=12, radial=4)
    >>> solution.points.shape, solution.stress.shape, solution.converged.tolist()
    (torch.Size([1, 972, 2]), torch.Size([1, 972]), [True])
    """
    if theta.shape != (len(theta), PARAMETERS):
        raise ShapeError(f"elasticity needs theta (batch, {PARAMETERS}), got {tuple(theta.shape)}")
    if not theta.isfinite().all():
        which = (~theta.isfinite()).any(1).nonzero().flatten().tolist()
        raise DataError(
            f"void parameters must be finite; {len(which)} of {len(theta)} samples are not, "
            f"the first at batch index {which[0]}"
        )
    grid = o_mesh(angular, radial, theta.device)
    radius = void_radius(theta.double(), grid.angles)
    return solve_void(radius, grid, load=load, tolerance=tolerance, limit=limit)
