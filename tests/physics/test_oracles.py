"""Our finite elements against scikit-fem: its meshes, assembly, boundary terms and solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import skfem
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from skfem.helpers import ddot, div, dot, grad, mul, transpose

from ono.physics import elasticity, pipe, taylor_hood
from ono.physics import o_mesh as mesh_of

Array = NDArray[np.float64]
CPU = torch.device("cpu")
# Our nine nodes, number 3 a + b, in the order of scikit-fem: corners, edges, centre.
ORDER = [0, 6, 8, 2, 3, 7, 5, 1, 4]
GAUSS = 5  # the degree whose rule is 3 x 3 Gauss points, as ours


def quadratic_mesh(x: Array, nodes: NDArray[np.int64]) -> Any:
    return skfem.MeshQuad2(np.ascontiguousarray(x.T), np.ascontiguousarray(nodes[:, ORDER].T))


def by_position(basis: Any, x: Array, component: int | None = None) -> NDArray[np.int64]:
    """Return the degree of freedom of `basis` at each of our nodes."""
    count = basis.N if component is None else basis.N // 2
    every = np.arange(count) if component is None else 2 * np.arange(count) + component
    distance, nearest = cKDTree(basis.doflocs[:, every].T).query(x)
    assert np.max(distance) <= 1e-12
    found: NDArray[np.int64] = every[nearest]
    return found


def newton(system: Any, x: Array, held: NDArray[np.int64], steps: int) -> Array:
    """Return x after `steps` of Newton's method, the values at `held` unchanged."""
    for _ in range(steps):
        matrix, left = system(x)
        free = np.setdiff1d(np.arange(len(x)), held)
        x = x.copy()
        x[free] -= skfem.solve(matrix[free][:, free], left[free])
    return x


def momentum_matrix(u: Any, v: Any, w: Any) -> Any:
    viscous = w.nu * ddot(grad(u), grad(v))
    return viscous + dot(mul(grad(w.u), u) + mul(grad(u), w.u), v)


def momentum(v: Any, w: Any) -> Any:
    viscous = w.nu * ddot(grad(w.u), grad(v))
    return viscous + dot(mul(grad(w.u), w.u), v) - w.p * div(v)


def continuity_matrix(u: Any, q: Any, w: Any) -> Any:
    return -q * div(u)


def continuity(q: Any, w: Any) -> Any:
    return -q * div(w.u)


def test_pipe_agrees_with_scikit_fem() -> None:
    nodes, nu = 17, 0.005
    numbers = torch.from_numpy(pipe.centre_numbers(0, 3))[None]
    ours = pipe.solve(numbers, nodes=nodes, viscosity=nu, tolerance=1e-13)
    x = ours.points[0].flatten(0, 1).numpy()
    quads = taylor_hood.strip(nodes // 2, 10.0, 1.0, CPU).unknowns[:, :18:2].numpy() // 2
    mesh = quadratic_mesh(x, quads)
    velocity = skfem.Basis(mesh, skfem.ElementVector(skfem.ElementQuad2()), intorder=GAUSS)
    pressure = velocity.with_element(skfem.ElementQuad1())
    split = velocity.N
    coupling = skfem.asm(skfem.BilinearForm(continuity_matrix), velocity, pressure)

    def system(state: Array) -> tuple[Any, Array]:
        fields = {"u": velocity.interpolate(state[:split]), "nu": nu}
        fields["p"] = pressure.interpolate(state[split:])
        a = skfem.asm(skfem.BilinearForm(momentum_matrix), velocity, **fields)
        matrix = skfem.bmat([[a, coupling.T], [coupling, None]], "csr")
        left = (
            skfem.asm(skfem.LinearForm(momentum), velocity, **fields),
            skfem.asm(skfem.LinearForm(continuity), pressure, **fields),
        )
        return matrix, np.concatenate(left)

    at = np.stack([by_position(velocity, x, c) for c in range(2)], -1).reshape(nodes, nodes, 2)
    held = np.concatenate((at[0].ravel(), at[:, 0].ravel(), at[:, -1].ravel()))
    start = np.zeros(split + pressure.N)
    t = np.linspace(0, 1, nodes)
    start[at[0, :, 0]] = t * (1 - t)
    found = newton(system, start, np.unique(held), 9)
    assert np.abs(found[at] - ours.velocity[0].numpy()).max() <= 1e-12
    corners = split + by_position(pressure, x.reshape(nodes, nodes, 2)[::2, ::2].reshape(-1, 2))
    assert np.abs(found[corners] - ours.pressure[0, ::2, ::2].flatten().numpy()).max() <= 1e-12


def second_piola(c: Array) -> Array:
    """Return S = 2 dW/dC of plane stress from C = F^T F, with C33 = 1 / det C.

    With D = det C: I1 = tr C + 1 / D, I2 = D + tr C / D, and dD/dC = cof C.
    """
    trace, cof, det, eye = _invariants(c)
    first = eye - cof / det**2
    second = cof + eye / det - trace * cof / det**2
    return np.asarray(2 * (elasticity.C1 * first + elasticity.C2 * second))


def second_piola_rate(c: Array, dc: Array) -> Array:
    """Return the change of S with C."""
    trace, cof, det, eye = _invariants(c)
    dtrace, dcof, _, _ = _invariants(dc)
    ddet = ddot(cof, dc)
    first = 2 * ddet * cof / det**3 - dcof / det**2
    second = dcof - ddet * eye / det**2 - dtrace * cof / det**2
    second = second + trace * (2 * ddet * cof / det**3 - dcof / det**2)
    return np.asarray(2 * (elasticity.C1 * first + elasticity.C2 * second))


def _invariants(c: Array) -> tuple[Array, Array, Array, Array]:
    cof = np.array([[c[1, 1], -c[1, 0]], [-c[0, 1], c[0, 0]]])
    eye = np.eye(2)[:, :, None, None] * np.ones_like(c)
    return c[0, 0] + c[1, 1], cof, c[0, 0] * c[1, 1] - c[0, 1] * c[1, 0], eye


def _product(a: Array, b: Array) -> Array:
    return np.asarray(np.einsum("ij...,jk...->ik...", a, b))


def _deformation(w: Any) -> tuple[Array, Array]:
    f = grad(w.u) + np.eye(2)[:, :, None, None]
    return f, _product(transpose(f), f)


def stiffness(u: Any, v: Any, w: Any) -> Any:
    f, c = _deformation(w)
    half = _product(transpose(f), grad(u))
    ds = second_piola_rate(c, half + transpose(half))
    return ddot(_product(grad(u), second_piola(c)) + _product(f, ds), grad(v))


def internal(v: Any, w: Any) -> Any:
    f, c = _deformation(w)
    return ddot(_product(f, second_piola(c)), grad(v))


def pull(v: Any, w: Any) -> Any:
    return elasticity.LOAD * v[1]


def test_elasticity_agrees_with_scikit_fem() -> None:
    mesh = mesh_of.o_mesh(36, 16, CPU)
    theta = torch.from_numpy(elasticity.void_parameters(0, 3))[None]
    radius = elasticity.void_radius(theta, mesh.angles)
    x = mesh_of.node_positions(mesh, radius)
    gradient, volume = elasticity.gradients(mesh, x)
    ours, _, _ = elasticity.equilibrium(mesh, gradient, volume, elasticity.LOAD, 1e-12, 30)
    used = int(mesh.nodes.max()) + 1
    place = x[0, :used].numpy()

    theirs = quadratic_mesh(place, mesh.nodes.numpy())
    basis = skfem.Basis(theirs, skfem.ElementVector(skfem.ElementQuad2()), intorder=GAUSS)
    top = theirs.facets_satisfying(lambda at: at[1] > 1 - 1e-9, boundaries_only=True)
    load = skfem.asm(skfem.LinearForm(pull), basis.boundary(top))

    def system(u: Array) -> tuple[Any, Array]:
        field = basis.interpolate(u)
        return skfem.asm(skfem.BilinearForm(stiffness), basis, u=field), skfem.asm(
            skfem.LinearForm(internal), basis, u=field
        ) - load

    held = np.flatnonzero(basis.doflocs[1] < 1e-9)
    found = newton(system, np.zeros(basis.N), held, 5)
    at = np.stack([by_position(basis, place, c) for c in range(2)], -1)
    scale = np.abs(found).max()
    assert np.abs(found[at] - ours[0, :used].numpy()).max() <= 1e-10 * scale

    # Stress at our points: that of the element there, without the averages that ours has.
    solution = elasticity.solve_void(radius, mesh)
    inside, local = locate(basis, solution.points[0].numpy())
    h = np.zeros((2, 2, len(inside), 1))
    for k, dofs in enumerate(basis.element_dofs[:, inside]):
        shape = basis.elem.gbasis(basis.mapping, local, k, tind=inside)[0]
        h += found[dofs][:, None] * shape.grad
    f = h + np.eye(2)[:, :, None, None]
    cauchy = _product(_product(f, second_piola(_product(transpose(f), f))), transpose(f))
    xx, yy, xy = cauchy[0, 0, :, 0], cauchy[1, 1, :, 0], cauchy[0, 1, :, 0]
    mises = np.sqrt(xx**2 - xx * yy + yy**2 + 3 * xy**2)
    stress = solution.stress[0].numpy()
    assert np.linalg.norm(mises - stress) <= 0.02 * np.linalg.norm(stress)


def locate(basis: Any, points: Array) -> tuple[NDArray[np.int64], Array]:
    """Return the element that holds each point, and the point's own coordinates in it."""
    middle = basis.mapping.F(np.array([[0.5], [0.5]]))[:, :, 0]
    _, near = cKDTree(middle.T).query(points, k=12)
    element, local = np.full(len(points), -1), np.zeros((2, len(points), 1))
    for tind in np.asarray(near).T:
        own = np.full((2, len(points), 1), 0.5)
        for _ in range(8):
            missed = points.T[:, :, None] - basis.mapping.F(own, tind)
            own += np.einsum("ijkl,jkl->ikl", basis.mapping.invDF(own, tind), missed)
            own = own.clip(-0.2, 1.2)  # outside, the map may fold
        reached = np.abs(missed).max((0, 2)) <= 1e-12
        holds = reached & ((own > -1e-9) & (own < 1 + 1e-9)).all((0, 2))
        element[holds], local[:, holds] = tind[holds], own[:, holds]
    assert (element >= 0).all()
    return element, local
