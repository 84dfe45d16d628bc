"""Hold every solver against what is known of its flow or solid, and print how close it comes.

python benchmarks/validation.py                                  the cheap figures, minutes
python benchmarks/validation.py airfoil plasticity --slow        at the size of the benchmarks too

A figure is a number, measured now, and the bound that it must keep. The exit status is 1 if one
does not. Results are kept as JSON lines, the newest of each figure; `--table FILE` prints such a
file as Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import spsolve
from torch import Tensor

from ono.device import choose_device, describe_device
from ono.physics import (
    airfoil,
    block_tridiagonal,
    darcy,
    elasticity,
    euler,
    o_mesh,
    pipe,
    plastic_block,
    plasticity,
    sparse_lu,
    taylor_hood,
)
from ono.physics import navier_stokes as ns
from ono.physics.c_mesh import FAR, PUBLISHED, Cells, c_mesh, shape_parameters
from ono.physics.die import TOP, die_heights
from ono.physics.plastic_block import COURANT, FRAMES, HEIGHT, INTERVAL, SPEED, WIDTH
from ono.physics.return_map import (
    C_MEAN,
    C_SHEAR,
    POISSON,
    YIELD,
    YOUNG,
    return_to_yield,
    von_mises,
)
from ono.physics.roe import GAMMA, primitive
from ono.train.run import commit

COLUMNS = ("benchmark", "check", "measured", "bound")
F64 = torch.float64


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it must lie."""

    check: str
    measured: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def kept(self) -> bool:
        """Say whether it lies there; a NaN does not."""
        return self.low <= self.measured <= self.high

    @property
    def bound(self) -> str:
        """Write the bound for people."""
        if self.low == -math.inf:
            return f"≤ {self.high:.4g}"
        if self.high == math.inf:
            return f"≥ {self.low:.4g}"
        return f"{self.low:.4g} to {self.high:.4g}"


Figures = Iterator[Figure]


def at_most(check: str, measured: float | Tensor, high: float) -> Figure:
    return Figure(check, float(measured), high=high)


def near(check: str, measured: float | Tensor, target: float, off: float) -> Figure:
    return Figure(check, float(measured), target - off, target + off)


def near_published(check: str, measured: Tensor, published: float, share: float) -> Figure:
    """Compare with a mean over the published data, of which ours is another sample."""
    return near(f"{check} (published {published})", measured, published, share * published)


def draw(one: Callable[[int, int], NDArray[Any]], count: int, device: str) -> Tensor:
    """Return the first draws of seed 0."""
    return torch.from_numpy(np.stack([one(0, index) for index in range(count)])).to(device)


def gap(a: Tensor, b: float | Tensor) -> float:
    """Return the largest difference."""
    return float((a - b).abs().max())


def largest(a: Tensor, b: Tensor) -> float:
    """Return the largest difference over the largest value."""
    return gap(a, b) / float(b.abs().max())


def distance(a: Tensor, b: Tensor) -> float:
    """Return the difference in the mean square, relative to b."""
    return float((a - b).norm() / b.norm())


def line(nodes: int, device: str = "cpu", *, closed: bool = True) -> Tensor:
    """Return equidistant points on [0, 1], or on [0, 1) for a torus."""
    return torch.arange(nodes, dtype=F64, device=device) / (nodes - 1 if closed else nodes)


def darcy_error(nodes: int, device: str) -> float:
    """Return the error where u = sin(pi x) sin(2 pi y) and a = 2 + x + cos 3y."""
    x, y = torch.meshgrid(line(nodes, device), line(nodes, device), indexing="ij")
    a, px, py = 2 + x + torch.cos(3 * y), math.pi * x, 2 * math.pi * y
    u = px.sin() * py.sin()
    slope_x, slope_y = math.pi * px.cos() * py.sin(), 2 * math.pi * px.sin() * py.cos()
    forcing = 5 * math.pi**2 * a * u - slope_x + 3 * torch.sin(3 * y) * slope_y
    return distance(darcy.solve(a[None], forcing=forcing).field[0], u)


def darcy_matrix(a: NDArray[np.float64]) -> sparse.csc_array:
    """Return D^T F D over inner nodes: D the drop along each edge, F its mean coefficient."""
    nodes = len(a)
    step = sparse.eye_array(nodes - 1, nodes, k=1) - sparse.eye_array(nodes - 1, nodes)
    eye = sparse.eye_array(nodes)
    drop = sparse.csc_array(sparse.vstack((sparse.kron(step, eye), sparse.kron(eye, step))))
    face: NDArray[np.float64] = np.asarray(abs(drop) @ a.ravel()) / 2
    inner = drop[:, np.pad(np.ones((nodes - 2, nodes - 2), bool), 1).ravel()] * (nodes - 1)
    return sparse.csc_array(inner.T @ sparse.diags_array(face) @ inner)


def outflow(a: Tensor, u: Tensor) -> Tensor:
    """Return the flow out of the square, over its four sides."""
    total = a.new_zeros(len(a))
    for turn in range(4):
        k, w = torch.rot90(a, turn, (1, 2)), torch.rot90(u, turn, (1, 2))
        drop = w[:, 1, 1:-1] - w[:, 0, 1:-1]
        total += ((k[:, 0, 1:-1] + k[:, 1, 1:-1]) / 2 * drop).sum(1)
    return total


def check_darcy(device: str) -> Figures:
    coarse, fine = (darcy_error(nodes, device) for nodes in (43, 85))
    yield at_most("manufactured u: relative error at 85²", fine, 4.0e-4)
    yield near("manufactured u: order from 43² to 85²", math.log2(coarse / fine), 2.0, 0.1)

    def media(count: int, nodes: int) -> Tensor:
        return draw(lambda seed, i: darcy.coefficient(seed, i, nodes=nodes), count, device).double()

    a = media(1, 421)
    matrix, rhs = darcy_matrix(a[0].cpu().numpy()), np.ones(419**2)
    direct = torch.from_numpy(spsolve(matrix, rhs, permc_spec="MMD_AT_PLUS_A"))
    u = darcy.solve(a).field[0, 1:-1, 1:-1].flatten().cpu()
    yield at_most("against a sparse direct solve, 421²", largest(u, direct), 1e-10)
    a = media(4, 85)
    f = 1 + torch.rand(85, 85, dtype=F64, generator=torch.Generator().manual_seed(1)).to(a)
    out = outflow(a, darcy.solve(a, forcing=f, tolerance=1e-14).field)
    source = f[1:-1, 1:-1].sum() / 84**2
    yield at_most("outflow over the integral of f, less 1", gap(out / source, 1), 1e-12)
    u, turned = darcy.solve(a).field, darcy.solve(a.mT).field
    yield at_most("transposed medium, transposed field", largest(turned, u.mT), 1e-12)
    runs = [darcy.solve(media(3, nodes)) for nodes in (22, 43, 85, 211, 421)]
    yield at_most("iterations, 22² to 421²", torch.cat([r.iterations for r in runs]).max(), 30)
    yield at_most("true residual, 22² to 421²", torch.cat([r.residual for r in runs]).max(), 1e-9)
    u = darcy.solve(media(200, 43)).field[:, 1:-1, 1:-1]
    yield near_published("root mean square of u, 43²", u.square().mean().sqrt(), 6.95e-3, 0.03)


def energy(w: Tensor) -> Tensor:
    """Return the mean of |velocity|² / 2, by the sum of |w_k|² / |2 pi k|²."""
    k = torch.fft.fftfreq(w.shape[-1], 1 / w.shape[-1], dtype=F64, device=w.device)
    square = 4 * math.pi**2 * (k[:, None] ** 2 + k**2)
    square[0, 0] = math.inf
    power: Tensor = torch.fft.fft2(w, norm="forward").abs().square() / square
    return power.sum((-2, -1)) / 2


def vortices(count: int, nodes: int, device: str) -> Tensor:
    return draw(lambda seed, i: ns.initial_vorticity(seed, i, nodes=nodes), count, device)


def check_conservation(device: str) -> Figures:
    """Follow turbulence that nothing drives or slows down."""
    w = vortices(3, 64, device)
    start = ns.solve(w, times=[1e-9], viscosity=0.0, forcing=False).frames[:, 0]
    drifts = []
    for dt in (0.1, 0.05):
        end = ns.solve(w, times=[5.0], viscosity=0.0, forcing=False, step=dt).frames[:, 0]
        of_energy = (energy(end) / energy(start) - 1).abs().max()
        of_enstrophy = (end.square().mean((1, 2)) / start.square().mean((1, 2)) - 1).abs().max()
        drifts.append((float(of_energy), float(of_enstrophy)))
    yield at_most("energy drift to t = 5, nu = f = 0, dt 0.1", drifts[0][0], 1e-7)
    yield at_most("enstrophy drift, likewise", drifts[0][1], 2e-5)
    falls = torch.tensor(drifts[0]) / torch.tensor(drifts[1])
    yield Figure("fall of the drifts with half the step", float(falls.min()), low=16)


def check_ns2d(device: str) -> Figures:
    wave = torch.cos(2 * math.pi * line(32, device, closed=False))
    w, times = torch.outer(wave, wave)[None], [0.5, 1.0, 3.0]
    frames = ns.solve(w, times=times, viscosity=0.01, forcing=False).frames[0]
    decay = torch.exp(-0.08 * math.pi**2 * torch.tensor(times, dtype=F64, device=device))
    error = gap(frames / decay[:, None, None], w)
    yield at_most("Taylor-Green vortices to t = 3: error", error, 1e-12)
    w = 2 * vortices(2, 32, device)
    runs = [ns.solve(w, times=[2.0], viscosity=1e-3, step=dt).frames for dt in (0.1, 0.05, 0.005)]
    order = math.log2(distance(runs[0], runs[2]) / distance(runs[1], runs[2]))
    yield near("order in dt, 0.1 to 0.05", order, 4.0, 0.3)
    yield from check_conservation(device)
    w = vortices(2, 64, device)
    frames = ns.solve(w, times=[2.0, 4.0]).frames
    moved = ns.solve(w.roll((5, -5), (1, 2)), times=[2.0, 4.0]).frames.roll((-5, 5), (2, 3))
    yield at_most("start moved along the forcing, flow moved", largest(moved, frames), 1e-12)
    yield at_most("mean vorticity", frames.mean((2, 3)).abs().max(), 1e-12)
    k = torch.arange(-15, 16, dtype=F64)
    variance = 2 * 7.0**3 * (4 * math.pi**2 * (k[:, None] ** 2 + k**2) + 49) ** -2.5
    variance[15, 15] = 0
    # Of the mean square over 2000 draws; its root varies half as much.
    deviation = float((2 * variance.square().sum() / 2000).sqrt() / variance.sum())
    ratio = (vortices(2000, 32, "cpu").square().mean() / variance.sum()).sqrt()
    yield near("std of w at t = 0 over the analytic one", ratio, 1.0, 1.5 * deviation)
    w = vortices(32, 64, device)
    single = ns.solve(w.float(), times=[1.0, 10.0, 20.0]).frames
    double = ns.solve(w[:4], times=[1.0, 10.0]).frames
    error = distance(single[:4, 1].double(), double[:, 1])
    yield at_most("float32 against float64 at t = 10", error, 1e-4)
    sizes = single.abs().mean((0, 2, 3))
    for t, size, published in zip((1, 10, 20), sizes, (0.225, 0.885, 1.57), strict=True):
        yield near_published(f"mean of abs(w) at t = {t}, 64²", size, published, 0.08)


@dataclass(frozen=True, slots=True)
class Cell:
    """Stretched rubber with voids, on a mesh."""

    mesh: o_mesh.Mesh
    x: Tensor
    gradient: Tensor
    volume: Tensor
    u: Tensor

    @property
    def wall(self) -> Tensor:
        """Return the stress at the nodes of the void."""
        columns = len(self.mesh.angles) - len(self.mesh.point_depth)
        return elasticity.nodal_stress(self.mesh, self.gradient, self.u)[:, :columns]

    def forces(self, u: Tensor) -> Tensor:
        return elasticity.internal_force(self.mesh, self.gradient, self.volume, u)


def cell(radius: float | Tensor, angular: int, radial: int, device: str) -> Cell:
    """Solve for a circular void, or for theta."""
    mesh = o_mesh.o_mesh(angular, radial, torch.device(device))
    if isinstance(radius, Tensor):
        r = elasticity.void_radius(radius, mesh.angles)
    else:
        r = torch.full_like(mesh.angles, radius)[None]
    x = o_mesh.node_positions(mesh, r)
    gradient, volume = elasticity.gradients(mesh, x)
    u, _, _ = elasticity.equilibrium(mesh, gradient, volume, elasticity.LOAD, 1e-12, 30)
    return Cell(mesh, x, gradient, volume, u)


def check_elements(device: str) -> Figures:
    """Hold the elements against an exact field and their own derivatives, on a coarse mesh."""
    at = cell(draw(elasticity.void_parameters, 1, device), 12, 5, device)
    stretch = 1.0002
    load = 2 * (elasticity.C1 + elasticity.C2 / stretch) * (stretch - stretch**-2)
    u = (at.x - 0.5) * torch.tensor([stretch**-0.5 - 1, stretch - 1], dtype=F64, device=device)
    left = (at.forces(u) / load - at.mesh.pull) * at.mesh.free
    # The void's own nodes come first; there nothing balances the stretch.
    yield at_most("patch: force left inside, over the load", left[:, 24:].abs().max(), 1e-10)
    free, pull = at.mesh.free.flatten(), at.mesh.pull.flatten()
    matrix = torch.autograd.functional.jacobian(at.forces, torch.zeros_like(at.u))
    matrix = matrix.reshape(len(free), len(free))[free][:, free].cpu().numpy()
    direct = torch.from_numpy(np.linalg.solve(matrix, pull[free].cpu().numpy()))
    factor = block_tridiagonal.factor(elasticity.stiffness(at.mesh, at.gradient, at.volume))
    found = factor.solve(pull[None])[0, free].cpu()
    yield at_most("block elimination against a dense solve", largest(found, direct), 1e-10)
    reaction = (at.forces(at.u) * ~at.mesh.free).sum(1)[0, 1] / elasticity.LOAD
    yield at_most("reaction over the load, less 1", gap(-reaction, 1), 1e-8)


def check_elasticity(device: str) -> Figures:
    yield from check_elements(device)
    small = cell(0.05, 36, 26, device).wall[0] / elasticity.LOAD
    # Columns start at pi/4, five degrees apart: 9 and 45 are the poles of the hole.
    yield near("Kirsch: stress beside a small hole, over the load", small[:, 1, 1].max(), 3.1, 0.1)
    yield near("Kirsch: stress at its poles", small[[9, 45], 0, 0].mean(), -1.03, 0.1)
    at = cell(0.3, 48, 32, device)
    phi = at.mesh.angles[:96]
    traction = at.wall[0] @ torch.stack((phi.cos(), phi.sin()), -1)[..., None]
    share = traction.abs().max() / at.wall.abs().max()
    yield at_most("traction on a void, over its largest stress", share, 1e-3)
    stress = elasticity.solve(torch.zeros(1, 10, device=device)).stress.reshape(36, 3, 3, 3)
    mirrored = stress[(8 - torch.arange(36, device=device)) % 36].flip(2)
    yield at_most("circular void: left against right", largest(mirrored, stress), 1e-9)
    theta = draw(elasticity.void_parameters, 20, device)
    coarse, fine = (cell(theta[:1], *size, device) for size in ((36, 26), (72, 52)))
    work = (coarse.u * coarse.mesh.pull).sum() / (fine.u * fine.mesh.pull).sum()
    yield at_most("compliance at 36x26 over 72x52, less 1", gap(work, 1), 2e-3)
    solution, weak = elasticity.solve(theta), elasticity.solve(theta, load=elasticity.LOAD / 100)
    error = largest(solution.stress, 100 * weak.stress)
    yield at_most("stress against 100 times that of 1 % of the load", error, 3e-3)
    yield at_most("true residual, 20 voids", solution.residual.max(), 1e-9)
    mean, peak = solution.stress.mean(1).median(), solution.stress.amax(1).median()
    yield near_published("median over voids of the mean stress", mean, 186, 0.08)
    yield near_published("median over voids of the largest stress", peak, 870, 0.12)


def kovasznay_error(side: int) -> float:
    """Return the error of the velocity for Kovasznay's flow at Reynolds number 40, in a bent strip.

    u = 1 - e^(k x) cos 2 pi y, v = k / (2 pi) e^(k x) sin 2 pi y, p = -e^(2 k x) / 2 solve the
    equations exactly; the boundary is held at them, and so is one pressure.
    """
    nu, k = 1 / 40, 20 - math.sqrt(400 + 4 * math.pi**2)
    mesh = taylor_hood.strip(side, 2.0, 1.0, torch.device("cpu"))
    n = mesh.nodes
    free = mesh.free.clone()
    free[: 2 * n**2].view(n, n, 2)[-1] = False
    free[2 * n**2] = False
    mesh = replace(mesh, free=free)
    x = 2 * line(n)[:, None]
    centre = 0.3 * torch.sin(2 * x)
    y = centre + line(n) - 0.5
    grow, turn = torch.exp(k * x), 2 * math.pi * y
    u, v = 1 - grow * turn.cos(), k / (2 * math.pi) * grow * turn.sin()
    p = (-grow.square() / 2).expand(n, n)[::2, ::2]
    exact = torch.cat((torch.stack((u, v), -1).flatten(), p.flatten()))[None]
    gradient = taylor_hood.gradients(mesh, centre.mT)
    solver = sparse_lu.pattern(mesh.unknowns, free)
    state = exact * ~free
    for _ in range(8):
        left = taylor_hood.residual(mesh, gradient, state, nu)
        state = state - solver.solve(taylor_hood.jacobian(mesh, gradient, state, nu), left)
    return distance(state[:, : 2 * n**2], exact[:, : 2 * n**2])


def through(solution: pipe.Solution) -> Tensor:
    """Return the flow through each vertical line of nodes over that of the inlet (Simpson)."""
    u = solution.velocity[..., 0]
    return (2 * u[..., 1::2].sum(-1) + u[..., ::2].sum(-1)) * 4 / (u.shape[-1] - 1)


def check_pipe(device: str) -> Figures:
    straight = pipe.solve(torch.zeros(1, 9, device=device), nodes=33)
    x, y = straight.points[0].unbind(-1)
    exact = torch.stack(((1 - 4 * y**2) / 4, 0 * y), -1)
    yield at_most("straight pipe: error of the velocity", gap(straight.velocity[0], exact), 1e-12)
    error = gap(straight.pressure[0], (10 - x) / 100)
    yield at_most("straight pipe: error of the pressure", error, 1e-12)
    coarse, fine = (kovasznay_error(side) for side in (16, 32))
    yield at_most("Kovasznay's flow: relative error at the nodes, 65²", fine, 1e-4)
    yield Figure("Kovasznay's flow: order from 33² to 65²", math.log2(coarse / fine), low=2.9)
    numbers = draw(pipe.centre_numbers, 8, device)
    solution = pipe.solve(numbers, nodes=33)
    yield at_most("true residual, 33²", solution.residual.max(), 1e-9)
    flux = through(solution)
    column = (flux[:, :-2:2] + 4 * flux[:, 1::2] + flux[:, 2::2]) / 6
    yield at_most("flux through element columns, less 1, 33²", gap(column, 1), 1e-10)
    sign = torch.tensor([1.0, -1.0], dtype=F64, device=device)
    mirrored = pipe.solve(-numbers, nodes=33).velocity.flip(2) * sign
    yield at_most("mirrored pipe, mirrored flow", largest(mirrored, solution.velocity), 1e-10)
    dense = pipe.solve(numbers, nodes=33, dense=True).velocity.cpu()
    plain = pipe.solve(numbers.cpu(), nodes=33, dense=False).velocity
    yield at_most("block elimination against sparse LU", largest(dense, plain), 1e-10)
    full, half = (pipe.solve(numbers[:2], nodes=nodes) for nodes in (129, 65))
    yield at_most("flux through lines of nodes, less 1, 129²", gap(through(full), 1), 0.01)
    error = distance(half.velocity[..., 0], full.velocity[:, ::2, ::2, 0])
    yield at_most("u_x at 65² against 129²", error, 0.012)


def by_bisection(stress: Tensor) -> Tensor:
    """Return a stress to the yield surface by halving an interval of the flow."""
    mean, half, shear = (stress[0] + stress[2]) / 2, (stress[0] - stress[2]) / 2, stress[1]

    def at(g: Tensor) -> Tensor:
        a, b, t = mean / (1 + C_MEAN * g), half / (1 + C_SHEAR * g), shear / (1 + C_SHEAR * g)
        return torch.stack((a + b, t, a - b))

    low, high = torch.zeros_like(mean), torch.ones_like(mean)
    for _ in range(120):
        middle = (low + high) / 2
        outside = von_mises(at(middle)) > YIELD
        low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
    return at(high)


def check_material(device: str) -> Figures:
    """Hold the stress of a point against bisection and Hooke's law."""
    stress = torch.randn(3, 10_000, dtype=F64, generator=torch.Generator().manual_seed(0))
    size = YIELD * torch.logspace(0, 3, 10_000, dtype=F64)
    trial = (stress / von_mises(stress) * size).to(device)
    error = gap(return_to_yield(trial), by_bisection(trial)) / YIELD
    yield at_most("return map against bisection, over yield", error, 1e-6)
    excess = von_mises(return_to_yield(trial.float())).max() / YIELD - 1
    yield at_most("von Mises stress over yield, less 1: return map, float32", excess, 1e-5)
    motion = plastic_block.at_rest(draw(die_heights, 1, device) + 20, (5, 4), dtype=F64)
    motion.moved.fill_(1.0)
    strain = 0.9 * YIELD / YOUNG
    along, across = torch.zeros(2, 2, *motion.stress.shape[1:], dtype=F64, device=device)
    across[0], along[1] = -POISSON * strain, strain
    plastic_block.update_stress(motion, across, along)
    modulus = motion.stress[2] / strain / YOUNG
    yield at_most("uniaxial loading: modulus over Young's, less 1", gap(modulus, 1), 1e-12)
    plastic_block.update_stress(motion, -across, -along)
    left = motion.stress.abs().max() / YIELD
    yield at_most("stress after unloading, over yield", left, 1e-12)


def check_plasticity(device: str) -> Figures:
    yield from check_material(device)
    heights = draw(die_heights, 3, device)
    flat = torch.full_like(heights[:1], TOP)
    motion = plastic_block.at_rest(torch.cat((heights, flat)), (6, 3))
    plasticity.march(motion, 100_000)
    # Uniaxial flow keeps the volume: both other sides grow alike.
    expected = WIDTH * math.sqrt(HEIGHT / (HEIGHT - SPEED * INTERVAL * (FRAMES - 1)))
    bottom = motion.frames[-1, 0, :, -1, 3]
    width = WIDTH + bottom[0] - bottom[-1]
    yield near("flat die: width over that of equal volume", width / expected, 1.0, 0.01)
    pressure = motion.stress[2, ..., 3].mean() / YIELD
    yield near("flat die: mean stress over yield", pressure, -1.0, 0.03)
    excess = von_mises(motion.stress).max() / YIELD - 1
    yield at_most("von Mises stress over yield, less 1: 4 dies at the end", excess, 1e-5)
    half = plasticity.solve(heights, nodes=(6, 3), courant=COURANT / 2).displacement[:, -1]
    last = motion.frames[-1, ..., :3].movedim((-1, 0), (0, -1))
    yield at_most("change of the last frame with half the step", distance(last, half), 0.01)
    pair = plasticity.solve(torch.cat((heights[:1], heights[:1].flip(1))), nodes=(11, 4))
    one, other = pair.displacement[:, -1]
    mirrored = other.flip(0) * torch.tensor([-1.0, 1.0], device=device)
    yield at_most("mirrored die, mirrored last frame", distance(mirrored, one), 5e-3)
    yield at_most("penetration of the die in mm, 11x4", pair.residual.max(), 0.02)


def check_movement(device: str) -> Figures:
    """Compare the movement with the published frames, and with that of finer meshes."""
    heights = draw(die_heights, 16, device)
    coarse = plasticity.solve(heights, nodes=(26, 9))
    yield at_most("dies of 16 not followed to the end, 26x9", (~coarse.converged).sum(), 0)
    yield at_most("penetration of the die in mm, 26x9", coarse.residual.max(), 0.01)
    moved = coarse.displacement.diff(dim=1).std((0, 1, 2, 3))
    for name, size, published in zip("xy", moved, (0.132, 0.085), strict=True):
        yield near_published(f"std of u_{name} from frame to frame, 26x9", size, published, 0.12)
    middle, full = (plasticity.solve(heights[:1], nodes=n) for n in ((51, 16), (101, 31)))
    yield at_most("dies of 1 not followed to the end, 101x31", (~full.converged).sum(), 0)
    yield at_most("penetration of the die in mm, 101x31", full.residual.max(), 0.01)
    error = distance(middle.displacement[0, -1], full.displacement[0, -1, ::2, ::2])
    yield at_most("last frame at 51x16 against 101x31", error, 0.1)


def airfoil_figures(solution: airfoil.Solution, cells: Cells, spread: float) -> Figures:
    """Return what must hold on every mesh; sample 0 is NACA 0012."""
    size = "{}x{}".format(*cells.nodes)
    flow, nodes = solution.flow.double(), solution.nodes
    rho, u, v, p, mach = flow.unbind(-1)
    failed = (~solution.converged).sum()
    yield at_most(f"flows of {len(flow)} not at rest, {size}", failed, 0)
    yield at_most(f"NACA 0012: upper less lower Mach, {size}", gap(mach[0], mach[0].flip(0)), 1e-4)
    wall = slice(cells.wake, cells.wake + cells.around + 1)
    along, push = nodes[0, wall, 0, 0].diff(), (p[0, wall, 0][1:] + p[0, wall, 0][:-1]) / 2
    lift = (along * push).sum() / (GAMMA / 2 * euler.MACH**2)
    yield at_most(f"NACA 0012: lift coefficient, {size}", lift.abs(), 1e-5)
    enthalpy = (GAMMA / (GAMMA - 1) * p / rho + (u * u + v * v) / 2).flatten(1)
    uneven = (enthalpy.std(1) / enthalpy.mean(1)).max()
    yield at_most(f"total enthalpy, std over mean, {size}", uneven, spread)
    rim = torch.cat((nodes, rho[..., None] * flow[..., 1:3]), -1)
    rim = torch.cat((rim[:, 0, :-1], rim[:, :-1, -1], rim[:, -1].flip(1)), 1)
    step, mass = rim[..., :2].diff(dim=1), (rim[:, 1:, 2:] + rim[:, :-1, 2:]) / 2
    out = (mass[..., 0] * step[..., 1] - mass[..., 1] * step[..., 0]).sum(1).abs().max()
    passing = euler.FREE_STREAM[1] * 2 * FAR
    yield at_most(f"mass out of the far field, over what passes, {size}", out / passing, 1e-3)
    yield at_most(f"Mach number of the far field less 0.8, {size}", gap(mach[:, :, -1], 0.8), 0.02)


def check_airfoil(device: str) -> Figures:
    g = euler.geometry(c_mesh(draw(shape_parameters, 3, device)), PUBLISHED.around // 2)
    rate = euler.residual(g, *euler.ghosted(g, primitive(euler.free_stream(g)))) / g.volume
    rate[:, :, : g.wall + 2, :2] = 0  # the airfoil is in the way
    yield at_most("free stream: change off the wall, 221x51", rate.abs().max(), 1e-12)
    theta, half = draw(shape_parameters, 2, device), Cells(6, 16, 6)
    one, other = (airfoil.solve(t, cells=half, dtype=F64).flow for t in (theta, -theta.flip(1)))
    sign = torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0], device=device)
    yield at_most("reflected airfoil, reflected flow, 29x7", gap(other.flip(1) * sign, one), 1e-9)
    quick = Cells(13, 30, 12)
    theta = torch.cat((torch.zeros_like(theta[:1]), draw(shape_parameters, 5, device)))
    yield from airfoil_figures(airfoil.solve(theta, cells=quick), quick, 1e-2)


def check_shock(device: str) -> Figures:
    """Solve for NACA 0012 and a drawn airfoil on the published mesh."""
    drawn = draw(shape_parameters, 1, device)
    solution = airfoil.solve(torch.cat((torch.zeros_like(drawn), drawn)))
    yield from airfoil_figures(solution, PUBLISHED, 1e-3)
    left = solution.residual.max()
    yield at_most("density residual over that of the free stream", left, airfoil.ACCEPTED)
    mach, x = solution.flow[0, 50:111, 0, 4], solution.nodes[0, 50:111, 0, 0]
    yield near("NACA 0012: largest Mach number", solution.flow[0, ..., 4].max(), 1.24, 0.03)
    steepest = int(mach.diff()[5:50].argmax()) + 5  # from the trailing edge on, a shock is a rise
    yield near("NACA 0012: shock at x", (x[steepest] + x[steepest + 1]) / 2, 0.5, 0.03)


CHEAP: dict[str, Callable[[str], Figures]] = {
    "darcy": check_darcy,
    "ns2d": check_ns2d,
    "elasticity": check_elasticity,
    "pipe": check_pipe,
    "plasticity": check_plasticity,
    "airfoil": check_airfoil,
}
SLOW: dict[str, Callable[[str], Figures]] = {"plasticity": check_movement, "airfoil": check_shock}


def table(lines: list[dict[str, Any]]) -> str:
    """Return lines as a Markdown table, with what is out of bounds in bold."""
    rows: list[tuple[str, ...]] = [COLUMNS, ("---",) * len(COLUMNS)]
    for one in lines:
        shown = one["measured"] if one["kept"] else f"**{one['measured']}**"
        rows.append((one["benchmark"], one["check"], shown, one["bound"]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def keep(lines: list[dict[str, Any]], file: Path) -> None:
    """Put lines in a file; a figure that was taken again replaces the older one in its place."""
    old = read(file) if file.exists() else []
    newest = {(one["benchmark"], one["check"]): one for one in [*old, *lines]}
    order = sorted(newest.values(), key=lambda one: list(CHEAP).index(one["benchmark"]))
    file.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in order))


@torch.no_grad()
def measure(name: str, device: str, *, slow: bool) -> Iterator[dict[str, Any]]:
    """Take the figures of one benchmark, each a line of the table."""
    for checks in (CHEAP, SLOW) if slow else (CHEAP,):
        for figure in checks[name](device) if name in checks else ():
            yield {
                "benchmark": name,
                "check": figure.check,
                "measured": f"{figure.measured:.3g}",
                "bound": figure.bound,
                "kept": figure.kept,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--slow", action="store_true", help="the sizes of the benchmarks as well")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--lines", type=Path, help="keep the results in this file of JSON lines")
    parser.add_argument("--commit", default=commit(), help="where the source has no history")
    parser.add_argument("--table", type=Path, help="only print this file as Markdown")
    args = parser.parse_args()
    if args.table is not None:
        print(table(read(args.table)))
        return
    unknown = set(args.names) - set(CHEAP)
    if unknown:
        parser.error(f"no checks for {', '.join(sorted(unknown))}; there are {', '.join(CHEAP)}")
    device, lines = choose_device(args.device), []
    made_by = {"device": describe_device(device), "commit": args.commit}
    for name in args.names or CHEAP:
        began = time.perf_counter()
        lines += [{**one, **made_by} for one in measure(name, device, slow=args.slow)]
        if args.lines is not None:
            keep(lines, args.lines)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    print(table(lines))
    sys.exit(any(not one["kept"] for one in lines))


if __name__ == "__main__":
    main()
