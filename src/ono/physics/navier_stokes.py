"""Two-dimensional turbulence on the unit torus, in vorticity form.

    w_t + u · grad w = nu Lap w + f,    u = (psi_y, -psi_x),    -Lap psi = w,

with f = 0.1 (sin 2pi(x + y) + cos 2pi(x + y)) and a Gaussian w at t = 0. Nodes are (i/N, j/N);
x runs along the first axis of an array, y along the second.

In Fourier modes exp(2 pi i k · x) viscosity is a factor and every derivative a product. Only the
modes with |k1|, |k2| < N/3 are kept: the product of two of them is then exact on the N x N grid
wherever it is kept itself (the 2/3 rule), so that advection conserves energy and enstrophy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from ono.errors import DataError, ShapeError

ALPHA, TAU = 2.5, 7.0  # smoothness and inverse length of the first vorticity
TIMES = tuple(float(t) for t in range(1, 21))

# RK4 is stable while dt times the largest advective frequency, 2 pi K max(|u| + |v|), is below
# 2.83; a fifth is kept in reserve.
STABLE = 0.8 * 2.83
LONGEST = 0.04  # no step is longer than this, for accuracy
TINY = torch.finfo(torch.float64).tiny
ACCEPTED = 2e-4  # largest defect of the enstrophy budget that counts as converged
HALVINGS = 3  # how often a sample may be run again with half the step

# Grid values advanced together: little enough for a CPU's cache, or to bound a GPU's memory.
CHUNK = {"cpu": 2**16, "cuda": 2**24}


@lru_cache(maxsize=8)
def _spectrum(nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return k1, k2 and the amplitude of all modes below the Nyquist frequency, k = 0 first.

    They are ordered by square shells max(|k1|, |k2|): a finer grid only appends to the list.
    """
    half = (nodes - 1) // 2
    k1, k2 = np.mgrid[-half : half + 1, -half : half + 1].reshape(2, -1)
    order = np.lexsort((k2, k1, np.maximum(abs(k1), abs(k2))))
    k1, k2 = k1[order], k2[order]
    norm = math.sqrt(2) * TAU ** (ALPHA - 1)
    amplitude = norm * (4 * np.pi**2 * (k1**2 + k2**2) + TAU**2) ** (-ALPHA / 2)
    amplitude[0] = 0.0
    return k1, k2, amplitude


def initial_vorticity(
    seed: int, index: int, attempt: int = 0, *, nodes: int
) -> NDArray[np.float64]:
    """Draw the vorticity at t = 0, a periodic Gaussian field without its mean:

        w(x) = Re sum over k != 0 of sqrt(2) tau^(alpha-1) (4 pi² |k|² + tau²)^(-alpha/2)
               (xi_k + i eta_k) exp(2 pi i k · x),    xi_k, eta_k ~ N(0, 1).

    k takes both signs, so k and -k add to one wave. Its numbers depend on (seed, index, attempt)
    and k alone: a finer grid shows the same function, with more of its short waves.

    >>> [round(float(initial_vorticity(0, 7, nodes=nodes).std()), 4) for nodes in (32, 64, 128)]
    [0.2124, 0.2125, 0.2125]
    """
    if nodes < 4:
        raise ShapeError(f"a vorticity needs at least 4 nodes a side, got {nodes}")
    stream = np.random.Philox(np.random.SeedSequence((seed, index, attempt)))
    k1, k2, amplitude = _spectrum(nodes)
    xi, eta = np.random.Generator(stream).standard_normal((len(amplitude), 2)).T
    modes = np.zeros((nodes, nodes), complex)
    modes[k1, k2] = amplitude * (xi + 1j * eta)  # negative k count from the end, as the FFT does
    field: NDArray[np.float64] = np.fft.ifft2(modes, norm="forward").real
    return field


@dataclass(frozen=True, slots=True)
class Solution:
    """The vorticity at each time asked for, with the evidence that it is one.

    Advection moves enstrophy Z = mean(w²) / 2 about and changes none of it, hence

        Z(t) - Z(0) = integral of R from 0 to t,    R = mean(w f) - nu mean(|grad w|²).

    `residual` is the largest defect of this budget at any frame, relative to the larger of Z(0)
    and Z(t). Time steps alone cause it: it is what RK4 creates or destroys, and because it weighs
    all wave numbers alike, it grows as soon as the short waves become unstable, long before the
    field is not finite (where it is infinite).
    """

    frames: Float[Tensor, "batch time nodes nodes"]
    steps: Int[Tensor, " batch"]  # of the run that was kept
    converged: Bool[Tensor, " batch"]
    residual: Float[Tensor, " batch"]


def fastest(t: float) -> float:
    """Bound max(|u| + |v|) at time t; 256 flows reached 0.16, 0.42 and 0.70 at t = 1, 10, 20."""
    return 0.14 + 0.03 * t


def schedule(
    times: Sequence[float], nodes: int, step: float | None = None
) -> list[tuple[int, float]]:
    """Return how many steps, and how long, lead to each time from the one before.

    They obey the stability bound for the speed that `fastest` expects at the end of the interval,
    or are at most `step` long, and are even in number. They know nothing of the samples: what a
    batch holds does not change its members.
    """
    plan = []
    for start, end in pairwise((0.0, *times)):
        stable = STABLE / (2 * math.pi * _kept(nodes) * fastest(end))
        longest = min(LONGEST, stable) if step is None else step
        count = 2 * max(1, math.ceil((end - start) / (2 * longest) - 1e-9))
        plan.append((count, (end - start) / count))
    return plan


def _kept(nodes: int) -> int:
    """Return K, the largest wave number below N/3."""
    return (nodes - 1) // 3


def _to_modes(field: Tensor) -> Tensor:
    """Return the Fourier coefficients for k1 in FFT order and 0 <= k2 <= K."""
    kept = _kept(field.shape[-1])
    rows: Tensor = torch.fft.rfft(field, norm="forward")[..., : kept + 1]
    modes: Tensor = torch.fft.fft(rows, dim=-2, norm="forward")
    return modes


def _to_grid(modes: Tensor) -> Tensor:
    """Return the values at the nodes; the modes that were not kept count as zero."""
    rows = torch.fft.ifft(modes, dim=-2, norm="forward")
    field: Tensor = torch.fft.irfft(rows, n=modes.shape[-2], norm="forward")
    return field


class _Torus:
    """The right-hand side of the equation, as arrays over the modes (k1, k2)."""

    def __init__(self, like: Tensor, viscosity: float, forcing: bool) -> None:
        nodes, kept = like.shape[-1], _kept(like.shape[-1])
        k1 = (torch.fft.fftfreq(nodes, dtype=torch.float64) * nodes).round()[:, None]
        k2 = torch.arange(kept + 1, dtype=torch.float64)
        keep = (k1.abs() <= kept) & ((k1 != 0) | (k2 != 0))  # a flow on a torus has no mean w
        d1, d2 = 2j * math.pi * k1 * keep, 2j * math.pi * k2 * keep
        laplacian = d1**2 + d2**2
        psi = -1 / torch.where(keep, laplacian, -math.inf)
        wave = (k1 == 1) & (k2 == 1)
        f = (
            0.05 * (1 - 1j) * forcing * wave.double()
        )  # sin + cos = Re (1 - i) exp, half of it at -k
        both = 1 + (k2 > 0) + 0 * k1  # the modes with k2 > 0 stand for -k as well

        def put(array: Tensor) -> Tensor:
            # k1 runs fastest in memory, as it does in what `_to_modes` returns.
            return array.to(like.device, like.dtype.to_complex()).mT.contiguous().mT

        self.keep, self.both, self.d1, self.d2, self.f = map(put, (keep, both, d1, d2, f))
        self.flow = put(torch.stack((d2 * psi, -d1 * psi, keep + 0j)))  # w -> (u, v, w)
        self.viscous = put(viscosity * laplacian)
        self.source, self.sink = self.both * self.f, self.both * self.viscous

    def tendency(self, w: Tensor) -> Tensor:
        """Return f - div(u w), which is f - u · grad w because div u = 0."""
        fields = _to_grid(w[:, None] * self.flow)
        flux_x, flux_y = _to_modes(fields[:, :2] * fields[:, 2:]).unbind(1)
        out = torch.addcmul(self.f, self.d1, flux_x, value=-1)
        return out.addcmul_(self.d2, flux_y, value=-1)

    def enstrophy(self, w: Tensor) -> Tensor:
        """Return Z = mean(w²) / 2 of each sample."""
        return _mean_product(w, self.both * w) / 2

    def enstrophy_rate(self, w: Tensor) -> Tensor:
        """Return R = mean(w f) + nu mean(w Lap w) of each sample."""
        return _mean_product(w, torch.addcmul(self.source, self.sink, w))


def _mean_product(a: Tensor, b: Tensor) -> Tensor:
    product: Tensor = torch.linalg.vecdot(a.mT.flatten(1), b.mT.flatten(1)).real
    return product.double()


def _march(w0: Tensor, plan: Sequence[tuple[int, float]], torus: _Torus) -> tuple[Tensor, Tensor]:
    """Return the frames and the worst defect of each sample's enstrophy budget.

    Classical RK4 for exp(nu |2 pi k|² t) w: viscosity is exact and does not limit the step. The
    budget is integrated by Simpson's rule over pairs of steps, of order 4 like the steps.
    """
    w = _to_modes(w0) * torus.keep
    first = torus.enstrophy(w)
    budget, worst = torch.zeros_like(first), torch.zeros_like(first)
    frames = w0.new_empty(len(w0), len(plan), *w0.shape[1:])
    for frame, (count, dt) in enumerate(plan):
        decay = torch.exp(torus.viscous * (dt / 2))  # over half a step
        for step in range(count):
            simpson = 1 if step == 0 else 2 + 2 * (step % 2)  # 1 4 2 4 ... 4 1
            budget.add_(torus.enstrophy_rate(w), alpha=simpson * dt / 3)
            a = decay * torus.tendency(w)
            w = decay * w
            b = torus.tendency(w.add(a, alpha=dt / 2))
            c = torus.tendency(w.add(b, alpha=dt / 2))
            d = torus.tendency(decay * w.add(c, alpha=dt))
            w = decay * w.add_(a, alpha=dt / 6).add_(b + c, alpha=dt / 3)
            w.add_(d, alpha=dt / 6)
        budget.add_(torus.enstrophy_rate(w), alpha=dt / 3)
        frames[:, frame] = _to_grid(w)
        now = torus.enstrophy(w)
        scale = torch.maximum(first, now).clamp_min(TINY)
        worst = torch.maximum(worst, (now - first - budget).abs() / scale)
    return frames, worst.nan_to_num(nan=math.inf, posinf=math.inf)


@torch.no_grad()
def solve(
    vorticity: Float[Tensor, "batch nodes nodes"],
    *,
    times: Sequence[float] = TIMES,
    viscosity: float = 1e-5,
    forcing: bool = True,
    step: float | None = None,
) -> Solution:
    """Return w at `times`, from w = `vorticity` at t = 0, in its dtype and on its device.

    The mean of `vorticity` and its waves from N/3 on are left out. Steps follow `schedule`, or are
    at most `step` long. A sample whose enstrophy budget does not
    close is run again, apart from the others, with steps half as long, up to `HALVINGS` times.

    >>> node = torch.arange(16, dtype=torch.float64) / 16
    >>> vortices = torch.cos(2 * math.pi * node[:, None]) * torch.cos(2 * math.pi * node)
    >>> solution = solve(vortices[None], times=[1.0], viscosity=0.01, forcing=False)
    >>> round(float(solution.frames[0, 0, 0, 0] / math.exp(-0.08 * math.pi**2)), 12)
    1.0
    """
    batch, rows, nodes = vorticity.shape
    if rows != nodes or nodes < 4 or not batch:
        raise ShapeError(
            f"expected vorticity (batch, nodes, nodes), not empty and with at least 4 nodes, "
            f"got {tuple(vorticity.shape)}"
        )
    if vorticity.dtype not in (torch.float32, torch.float64):
        raise DataError(f"vorticity must be float32 or float64, got {vorticity.dtype}")
    bad = (~vorticity.isfinite()).flatten(1).any(1)
    if bad.any():
        which = bad.nonzero().flatten().tolist()
        raise DataError(
            f"vorticity must be finite; {len(which)} of {batch} samples are not, "
            f"the first at batch index {which[0]}"
        )
    if not times or any(not start < end < math.inf for start, end in pairwise((0.0, *times))):
        raise DataError(f"times must be positive and increasing, got {list(times)}")
    if not 0 <= viscosity < math.inf:
        raise DataError(f"viscosity must be finite and not negative, got {viscosity}")
    if step is not None and not step > 0:
        raise DataError(f"step must be positive, got {step}")

    torus = _Torus(vorticity, viscosity, forcing)
    plan = schedule(times, nodes, step)
    frames = vorticity.new_empty(batch, len(times), nodes, nodes)
    steps = torch.zeros(batch, dtype=torch.int64, device=vorticity.device)
    residual = torch.full((batch,), math.inf, dtype=torch.float64, device=vorticity.device)
    chunk = max(1, CHUNK[vorticity.device.type] // nodes**2)
    for halving in range(HALVINGS + 1):
        left = (residual > ACCEPTED).nonzero().flatten()
        if not len(left):
            break
        finer = [(count * 2**halving, dt / 2**halving) for count, dt in plan]
        for part in left.split(chunk):
            frames[part], residual[part] = _march(vorticity[part], finer, torus)
        steps[left] = sum(count for count, _ in finer)
    return Solution(frames, steps, residual <= ACCEPTED, residual)
