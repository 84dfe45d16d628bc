"""Darcy flow through a random two-phase medium on the unit square.

    -div(a grad u) = f  in (0, 1)²,    u = 0 on the boundary,

with a = 12 where a Gaussian field g is at least 0, and 3 elsewhere. `coefficient` draws a at the
grid nodes (i h, j h), h = 1 / (nodes - 1); `solve` returns u at the same nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.fft
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ono.errors import DataError, ShapeError

HIGH, LOW = 12.0, 3.0  # the permeability where g >= 0, and where g < 0
ALPHA, TAU = 2.0, 3.0  # smoothness and inverse length of g
TINY = torch.finfo(torch.float64).tiny
ACCEPTED = 1e-9  # a sample has converged if its true relative residual is at most this

# Unknowns advanced together: on a CPU one chunk's vectors stay in cache, and a sample waits for
# few others; on a GPU they fill the device and bound the memory (about 12 such vectors, float64).
CHUNK = {"cpu": 2**17, "cuda": 2**25}
# Largest side for which two dense products beat the FFT on two CPU threads (one thread: 80).
DENSE = 128
# Iterations between two looks at who is still active; a look makes the host wait for a GPU.
LOOK = {"cpu": 1, "cuda": 4}


@lru_cache(maxsize=8)
def _spectrum(modes: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return, for each mode k, its place in the stream of normals and its amplitude.

    Modes are numbered by square shells m = max(k1, k2), so a larger `modes` only adds shells.
    """
    k1, k2 = np.meshgrid(np.arange(modes), np.arange(modes), indexing="ij")
    shell = np.maximum(k1, k2)
    place = shell * (shell + 1) + k2 - k1  # runs over [m², (m + 1)²) within shell m
    amplitude = TAU ** (ALPHA - 1) * (np.pi**2 * (k1**2 + k2**2) + TAU**2) ** (-ALPHA / 2)
    amplitude[0, 0] = 0.0
    return place, amplitude


def gaussian_field(
    seed: int, index: int, attempt: int = 0, *, nodes: int, modes: int | None = None
) -> NDArray[np.float64]:
    """Draw g ~ N(0, tau^(2 alpha - 2) (-Laplacian + tau²)^-alpha) at the nodes, without its mean.

    The Laplacian has Neumann conditions, hence the Karhunen-Loève series

        g(x) = sum over k != 0 of xi_k tau^(alpha-1) (pi² |k|² + tau²)^(-alpha/2) phi_k(x),

    with xi_k ~ N(0, 1) and phi_k(x) = c(k1) cos(pi k1 x1) c(k2) cos(pi k2 x2), c(0) = 1 and
    c(k) = sqrt(2) otherwise. `modes` per axis (all that the grid holds unless told) are summed;
    xi_k depends on (seed, index, attempt) and k alone, so finer grids show the same function.
    """
    modes = nodes if modes is None else modes
    if nodes < 2 or not 1 <= modes <= nodes:
        raise ShapeError(f"expected 2 <= nodes and 1 <= modes <= nodes, got {nodes=}, {modes=}")
    stream = np.random.Philox(np.random.SeedSequence((seed, index, attempt)))
    place, amplitude = _spectrum(modes)
    series = np.zeros((nodes, nodes))
    series[:modes, :modes] = (
        amplitude * np.random.Generator(stream).standard_normal(modes**2)[place]
    )
    # DCT-I counts every term twice but the first and the last.
    scale = np.full(nodes, math.sqrt(2) / 2)
    scale[0], scale[-1] = 1.0, math.sqrt(2)
    field: NDArray[np.float64] = scipy.fft.dctn(series * np.outer(scale, scale), type=1)
    return field


def coefficient(seed: int, index: int, attempt: int = 0, *, nodes: int) -> NDArray[np.float32]:
    """Draw the permeability a at the nodes: `HIGH` where g >= 0, `LOW` where g < 0.

    >>> a = coefficient(seed=0, index=7, nodes=85)
    >>> a.shape, np.unique(a).tolist()
    ((85, 85), [3.0, 12.0])
    """
    field = gaussian_field(seed, index, attempt, nodes=nodes)
    return np.where(field >= 0, HIGH, LOW).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Solution:
    """The solution at the nodes, with the evidence that it is one."""

    field: Float[Tensor, "batch nodes nodes"]
    residual: Float[Tensor, " batch"]  # ||b - A u|| / ||b||, recomputed after the last iteration
    iterations: Int[Tensor, " batch"]
    converged: Bool[Tensor, " batch"]


def sine_transform(
    size: int, device: torch.device, *, dense: bool | None = None
) -> Callable[[Tensor], Tensor]:
    """Return R -> (S R S)^T on (batch, N, N), N = size, S_ij = sqrt(2/(N+1)) sin(pi i j/(N+1)).

    S is symmetric and its own inverse, so the transform applied twice changes nothing; being
    transposed saves a copy. Unless told, take dense products on a GPU and on small grids, and
    the real FFT of the odd extension otherwise.
    """
    if dense is None:
        dense = device.type != "cpu" or size <= DENSE
    if dense:
        i = torch.arange(1, size + 1, device=device)
        turn = torch.outer(i, i) % (2 * size + 2)  # whole periods leave while still exact
        s = math.sqrt(2 / (size + 1)) * torch.sin(turn.double() * (math.pi / (size + 1)))
        return lambda r: s @ r.mT @ s

    def sines(r: Tensor) -> Tensor:
        # Im FFT of (0, r, 0, ..., 0) is half that of the odd extension (0, r, 0, -r reversed).
        odd: Tensor = torch.fft.rfft(functional.pad(r, (1, size + 1)))
        return odd.imag[..., 1:-1]

    return lambda r: sines(sines(r).mT) * (2 / (size + 1))


def inverse_laplacian(size: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return R -> S [(S R S) / (l_i + l_j)] S, the exact inverse of the operator with a = 1.

    l_i = (2 - 2 cos(pi i / (N+1))) (N+1)² are the eigenvalues of the second difference on N nodes.
    """
    transform = sine_transform(size, device)
    i = torch.arange(1, size + 1, dtype=torch.float64, device=device)
    line = (2 * (size + 1) * torch.sin(math.pi * i / (2 * size + 2))) ** 2  # = l_i, no cancelling
    inverse = 1 / (line[:, None] + line)
    return lambda r: transform(transform(r).mul_(inverse))


def five_point(a: Float[Tensor, "batch nodes nodes"]) -> Callable[[Tensor], Tensor]:
    """Return A: interior u -> -div(a grad u) by the 5-point scheme, u = 0 outside the interior.

    Across a face a is the arithmetic mean of its two nodes; A is symmetric positive definite.
    """
    half = (a.shape[-1] - 1) ** 2 / 2  # 1 / (2 h²)
    down = (a[:, 1:, 1:-1] + a[:, :-1, 1:-1]) * half
    right = (a[:, 1:-1, 1:] + a[:, 1:-1, :-1]) * half
    centre = down[:, 1:] + down[:, :-1] + right[:, :, 1:] + right[:, :, :-1]
    down, right = down[:, 1:-1].contiguous(), right[:, :, 1:-1].contiguous()  # between unknowns

    def apply(u: Tensor) -> Tensor:
        out = centre * u
        out[:, 1:].addcmul_(down, u[:, :-1], value=-1)
        out[:, :-1].addcmul_(down, u[:, 1:], value=-1)
        out[:, :, 1:].addcmul_(right, u[:, :, :-1], value=-1)
        out[:, :, :-1].addcmul_(right, u[:, :, 1:], value=-1)
        return out

    return apply


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner product of each sample, shaped to scale fields."""
    return (x * y).sum((1, 2), keepdim=True)


def _conjugate_gradients(
    operator: Callable[[Tensor], Tensor],
    precondition: Callable[[Tensor], Tensor],
    b: Tensor,
    tolerance: float,
    limit: int,
) -> tuple[Tensor, Tensor]:
    """Return u with ||b - A u|| < tolerance ||b|| and the iterations each sample took.

    A sample that has arrived is frozen by steps of length 0: its u and r no longer change.
    """
    u, r, p = torch.zeros_like(b), b.clone(), torch.zeros_like(b)
    goal = tolerance**2 * _dot(b, b)
    active = _dot(r, r) > goal
    iterations = torch.zeros_like(active, dtype=torch.int64)
    previous = torch.full_like(goal, math.inf)  # so that the first direction is z
    for step in range(limit):
        if step % LOOK[b.device.type] == 0 and not active.any():
            break
        z = precondition(r)
        rz = _dot(r, z)
        p = torch.addcmul(z, torch.where(active, rz / previous, 0.0), p)
        q = operator(p)
        length = torch.where(active, rz / _dot(p, q), 0.0)
        u.addcmul_(length, p)
        r.addcmul_(length, q, value=-1)
        previous = rz
        iterations += active
        active &= _dot(r, r) > goal
    return u, iterations.flatten()


@torch.no_grad()
def solve(
    coefficient: Float[Tensor, "batch nodes nodes"],
    *,
    forcing: Float[Tensor, "*samples nodes nodes"] | None = None,
    tolerance: float = 1e-10,
    limit: int = 200,
) -> Solution:
    """Solve -div(a grad u) = f, u = 0 on the boundary, in float64 on the coefficient's device.

    Conjugate gradients preconditioned by the inverse Laplacian: the condition number is at most
    max a / min a on any grid, so about 25 iterations serve them all when the contrast is 4. Each
    sample stops by itself, whatever shares its batch. `forcing` is f at the nodes, 1 unless given.

    >>> solution = solve(torch.ones(1, 65, 65))
    >>> round(float(solution.field[0, 32, 32]), 4), solution.iterations.tolist()
    (0.0737, [1])
    """
    batch, nodes = len(coefficient), coefficient.shape[-1]
    if coefficient.shape != (batch, nodes, nodes) or nodes < 3:
        raise ShapeError(
            f"Darcy needs coefficients (batch, nodes, nodes) with at least 3 nodes, "
            f"got {tuple(coefficient.shape)}"
        )
    bad = ~((coefficient > 0) & coefficient.isfinite()).flatten(1).all(1)
    if bad.any():
        which = bad.nonzero().flatten().tolist()
        raise DataError(
            f"Darcy coefficients must be finite and positive; {len(which)} of {batch} samples "
            f"are not, the first at batch index {which[0]}"
        )
    a = coefficient.double()
    f = a.new_ones(()) if forcing is None else forcing.to(a)
    if forcing is not None and f.shape not in (a.shape, a.shape[1:]):
        raise ShapeError(
            f"Darcy forcing must be {tuple(a.shape)} or {tuple(a.shape[1:])}, got {tuple(f.shape)}"
        )
    b = f.expand_as(a)[:, 1:-1, 1:-1]
    size = nodes - 2
    precondition = inverse_laplacian(size, a.device)
    field, residual = torch.zeros_like(a), a.new_empty(batch)
    iterations = torch.zeros(batch, dtype=torch.int64, device=a.device)
    chunk = max(1, CHUNK[a.device.type] // size**2)
    for start in range(0, batch, chunk):
        part = slice(start, start + chunk)
        operator, rhs = five_point(a[part]), b[part].contiguous()
        u, iterations[part] = _conjugate_gradients(operator, precondition, rhs, tolerance, limit)
        field[part, 1:-1, 1:-1] = u
        left = torch.linalg.vector_norm(rhs - operator(u), dim=(1, 2))
        # f = 0 has the solution 0 and the residual 0.
        residual[part] = left / torch.linalg.vector_norm(rhs, dim=(1, 2)).clamp_min(TINY)
    return Solution(field, residual, iterations, residual <= ACCEPTED)
