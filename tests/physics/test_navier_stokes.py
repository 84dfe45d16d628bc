"""Navier-Stokes: exact flows, conserved quantities, the order of the scheme, and its safeguards."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ono.errors import DataError, ShapeError
from ono.physics import navier_stokes as ns


def draw(count: int, nodes: int, *, seed: int = 0) -> Tensor:
    drawn = [ns.initial_vorticity(seed, index, nodes=nodes) for index in range(count)]
    return torch.from_numpy(np.stack(drawn))


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def velocity(w: Tensor) -> tuple[Tensor, Tensor]:
    """Return u and v from w by the full complex FFT."""
    k = torch.fft.fftfreq(w.shape[-1], 1 / w.shape[-1], dtype=torch.float64)
    k1, k2 = k[:, None], k[None]
    square = (4 * math.pi**2 * (k1**2 + k2**2)).clamp_min(1.0)
    psi = torch.fft.fft2(w.double()) / square
    u = torch.fft.ifft2(2j * math.pi * k2 * psi).real
    v = torch.fft.ifft2(-2j * math.pi * k1 * psi).real
    return u, v


def energy(w: Tensor) -> Tensor:
    u, v = velocity(w)
    return (u**2 + v**2).mean((-2, -1)) / 2


def enstrophy(w: Tensor) -> Tensor:
    return (w**2).mean((-2, -1)) / 2


def crank_nicolson_euler(
    w: NDArray[np.float64], *, end: float, dt: float, viscosity: float
) -> NDArray[np.float64]:
    """Integrate u · grad w in its plain form by the scheme of the published data."""
    nodes = len(w)
    k = np.fft.fftfreq(nodes, 1 / nodes)
    k1, k2 = k[:, None], k[None]
    square = 4 * np.pi**2 * (k1**2 + k2**2)
    keep = np.maximum(abs(k1), abs(k2)) < nodes / 3
    phase = 2 * np.pi * np.add.outer(np.arange(nodes), np.arange(nodes)) / nodes
    force = np.fft.fft2(0.1 * (np.sin(phase) + np.cos(phase)))
    modes = np.fft.fft2(w) * keep

    def grid(symbol: NDArray[np.complexfloating]) -> NDArray[np.float64]:
        values: NDArray[np.float64] = np.fft.ifft2(symbol * modes).real
        return values

    for _ in range(round(end / dt)):
        u = grid(2j * np.pi * k2 / np.maximum(square, 1))
        v = grid(-2j * np.pi * k1 / np.maximum(square, 1))
        advection = u * grid(2j * np.pi * k1) + v * grid(2j * np.pi * k2)
        explicit = force - keep * np.fft.fft2(advection)
        half = dt * viscosity * square / 2
        modes = ((1 - half) * modes + dt * explicit) / (1 + half)
    return grid(np.ones_like(square) + 0j)


def test_taylor_green_vortices_decay_exactly() -> None:
    node = 2 * math.pi * torch.arange(32, dtype=torch.float64) / 32
    w = torch.outer(torch.cos(node), torch.cos(node))[None]
    times, viscosity = [0.5, 1.0, 3.0], 0.01
    solution = ns.solve(w, times=times, viscosity=viscosity, forcing=False)
    for t, frame in zip(times, solution.frames[0], strict=True):
        exact = math.exp(-8 * math.pi**2 * viscosity * t) * w[0]
        assert float((frame - exact).abs().max() / exact.abs().max()) <= 1e-12
    assert solution.residual.max() <= 1e-6


def test_forcing_alone_makes_the_flow_it_balances() -> None:
    # Of w = 0 only the waves of f grow: w = f (1 - exp(-c t)) / c, c = 8 pi² nu, exactly.
    nodes, viscosity, t = 16, 0.003, 2.0
    node = torch.arange(nodes, dtype=torch.float64) / nodes
    phase = 2 * math.pi * (node[:, None] + node)
    rate = 8 * math.pi**2 * viscosity
    exact = 0.1 * (phase.sin() + phase.cos()) * (1 - math.exp(-rate * t)) / rate
    solution = ns.solve(torch.zeros(1, nodes, nodes).double(), times=[t], viscosity=viscosity)
    assert relative(solution.frames[0, 0], exact) <= 1e-8
    assert solution.converged.all()


def test_error_falls_with_order_four() -> None:
    w = 2 * draw(2, 32)
    exact = ns.solve(w, times=[2.0], viscosity=1e-3, step=0.005).frames
    runs = [ns.solve(w, times=[2.0], viscosity=1e-3, step=dt) for dt in (0.2, 0.1, 0.05)]
    errors = [relative(run.frames, exact) for run in runs]
    assert errors[-1] < 1e-5
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(4.0, abs=0.3)
    for first, second in pairwise(run.residual.max() for run in runs):
        assert first > 12 * second


def test_limit_of_small_steps_is_that_of_the_published_scheme() -> None:
    w, end, viscosity = draw(1, 32), 0.4, 1e-3
    start = w[0].numpy()
    coarse, fine = (
        crank_nicolson_euler(start, end=end, dt=dt, viscosity=viscosity) for dt in (2e-3, 1e-3)
    )
    frame = ns.solve(w, times=[end], viscosity=viscosity).frames[0, 0]
    first = relative(torch.from_numpy(fine), frame)
    extrapolated = relative(torch.from_numpy(2 * fine - coarse), frame)
    assert 1e-5 < first < 1e-3
    assert extrapolated < first / 100


def test_without_viscosity_and_forcing_energy_and_enstrophy_stay() -> None:
    w = draw(3, 64)
    start = ns.solve(w, times=[1e-9], viscosity=0.0, forcing=False).frames[:, 0]
    drifts = []
    for dt in (0.1, 0.05):
        solution = ns.solve(w, times=[2.5, 5.0], viscosity=0.0, forcing=False, step=dt)
        end = solution.frames[:, 1]
        of_energy = (energy(end) / energy(start) - 1).abs()
        of_enstrophy = (enstrophy(end) / enstrophy(start) - 1).abs()
        assert solution.residual.tolist() == pytest.approx(of_enstrophy.tolist(), rel=1e-2)
        drifts.append((float(of_energy.max()), float(of_enstrophy.max())))
    assert drifts[0][0] <= 1e-7
    assert drifts[0][1] <= 2e-5
    for coarse, fine in zip(*drifts, strict=True):
        assert coarse >= 16 * fine


def test_budget_is_that_of_the_frames() -> None:
    # Frames 0.05 apart, so that the trapezium rule over them is a fair integral of R.
    nodes, viscosity = 32, 1e-3
    times = [0.05 * i for i in range(1, 41)]
    w = draw(1, nodes)
    frames = ns.solve(w, times=times, viscosity=viscosity).frames[0]
    node = torch.arange(nodes, dtype=torch.float64) / nodes
    phase = 2 * math.pi * (node[:, None] + node)
    f = 0.1 * (phase.sin() + phase.cos())
    k = torch.fft.fftfreq(nodes, 1 / nodes, dtype=torch.float64)
    laplacian = -4 * math.pi**2 * (k[:, None] ** 2 + k**2)
    lap_w = torch.fft.ifft2(laplacian * torch.fft.fft2(frames)).real
    rate = (frames * (f + viscosity * lap_w)).mean((1, 2))
    gained = enstrophy(frames[-1]) - enstrophy(frames[0])
    integral = torch.trapezoid(rate, dx=0.05)
    assert float(gained) == pytest.approx(float(integral), rel=2e-3)


@pytest.mark.parametrize("nodes", [16, 33, 48, 64])
def test_mean_vorticity_stays_zero_on_any_grid(nodes: int) -> None:
    solution = ns.solve(draw(2, nodes) + 0.3, times=[1.0, 4.0])
    assert solution.converged.all()
    assert solution.frames.mean((2, 3)).abs().max() <= 1e-12


def test_frames_hold_no_wave_beyond_a_third_of_the_grid() -> None:
    nodes = 48
    modes = torch.fft.fft2(ns.solve(draw(1, nodes), times=[2.0]).frames[0, 0], norm="forward")
    k = torch.fft.fftfreq(nodes, 1 / nodes).abs()
    outside = torch.maximum(k[:, None], k) >= nodes / 3
    assert modes[outside].abs().max() <= 1e-15
    assert modes[15, 15].abs() > 1e-9


def test_shifting_along_the_forcing_shifts_the_flow() -> None:
    w = draw(2, 32)
    move = {"shifts": (5, -5), "dims": (-2, -1)}
    shifted = ns.solve(torch.roll(w, **move), times=[2.0]).frames
    assert relative(shifted, torch.roll(ns.solve(w, times=[2.0]).frames, **move)) <= 1e-12
    across = ns.solve(torch.roll(w, (5, 5), (-2, -1)), times=[2.0]).frames
    assert relative(across, torch.roll(ns.solve(w, times=[2.0]).frames, (5, 5), (-2, -1))) > 0.01


def test_mean_size_of_the_vorticity_is_that_of_the_published_data() -> None:
    frame = ns.solve(draw(100, 32).float(), times=[1.0]).frames
    # 0.225; had the initial field half the variance, it would be 0.170. One sample varies by 0.048.
    assert float(frame.abs().mean()) == pytest.approx(0.225, abs=3 * 0.048 / math.sqrt(100))


def test_single_precision_follows_double_precision() -> None:
    w = draw(4, 64)
    double, single = ns.solve(w, times=[1.0, 10.0]), ns.solve(w.float(), times=[1.0, 10.0])
    assert single.frames.dtype == torch.float32
    assert double.frames.dtype == torch.float64
    assert relative(single.frames[:, 0].double(), double.frames[:, 0]) <= 5e-6
    assert relative(single.frames[:, 1].double(), double.frames[:, 1]) <= 1e-4
    assert single.converged.all()
    assert torch.equal(single.steps, double.steps)


def test_default_steps_close_the_budget_over_the_whole_time() -> None:
    solution = ns.solve(draw(4, 64).float())
    assert solution.frames.shape == (4, 20, 64, 64)
    assert solution.steps.unique().tolist() == [622]
    assert solution.residual.max() <= ns.ACCEPTED / 2
    for t, frame in zip(ns.TIMES, solution.frames.unbind(1), strict=True):
        u, v = velocity(frame)
        assert float((u.abs() + v.abs()).max()) <= ns.fastest(t)


def test_schedule_is_even_stable_and_as_long_as_allowed() -> None:
    for nodes, total in ((64, 622), (128, 1088), (256, 2168)):
        plan = ns.schedule(ns.TIMES, nodes)
        assert sum(count for count, _ in plan) == total
        for t, (count, dt) in zip(ns.TIMES, plan, strict=True):
            assert count % 2 == 0
            assert count * dt == pytest.approx(1.0)
            assert dt <= 0.04
            assert 2 * math.pi * (nodes // 3) * ns.fastest(t) * dt <= 0.8 * 2.83
    assert [count for count, _ in ns.schedule([1.0, 1.3, 3.0], 256, step=0.1)] == [10, 4, 18]
    assert ns.schedule([1e-12], 256)[0][0] == 2


def test_unstable_sample_is_found_and_run_again_without_its_mates() -> None:
    w = draw(3, 64)
    w[1] *= 10  # ten times as fast: a step of 0.1 is too long for it
    times = [1.0, 2.0]
    together = ns.solve(w, times=times, step=0.1)
    assert together.converged.all()
    assert together.steps[[0, 2]].tolist() == [20, 20]
    assert together.steps[1] in (40, 80, 160)
    again = ns.solve(w[1:2], times=times, step=2.0 / int(together.steps[1]))
    assert again.steps[0] == together.steps[1]
    assert relative(together.frames[1], again.frames[0]) <= 1e-10
    calm = ns.solve(w[[0, 2]], times=times, step=0.1)
    assert relative(together.frames[[0, 2]], calm.frames) <= 1e-12


@pytest.mark.parametrize("factor", [10.0, 30.0, 1e4])
def test_sample_beyond_help_is_reported(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    monkeypatch.setattr(ns, "HALVINGS", 0)
    w = draw(2, 64).float()
    w[0] *= factor
    solution = ns.solve(w, times=[2.0], step=0.1)
    assert solution.converged.tolist() == [False, True]
    assert solution.residual[0] > 0.01
    assert not solution.residual.isnan().any()
    assert solution.frames[1].isfinite().all()


def test_result_does_not_depend_on_batch_mates(monkeypatch: pytest.MonkeyPatch) -> None:
    w = draw(5, 32)
    alone = [ns.solve(sample[None], times=[1.0, 4.0]) for sample in w]
    together = ns.solve(torch.cat((w, 3 * w)), times=[1.0, 4.0])
    monkeypatch.setitem(ns.CHUNK, "cpu", 2 * 32**2)
    parts = ns.solve(w, times=[1.0, 4.0])
    for index, one in enumerate(alone):
        assert relative(together.frames[index], one.frames[0]) <= 1e-11
        assert relative(parts.frames[index], one.frames[0]) <= 1e-11
        assert together.steps[index] == one.steps[0]


def test_same_call_gives_the_same_bytes_and_leaves_its_input() -> None:
    w = draw(2, 32).float()
    before = w.clone()
    first, second = ns.solve(w, times=[2.0]), ns.solve(w, times=[2.0])
    assert torch.equal(first.frames, second.frames)
    assert torch.equal(first.residual, second.residual)
    assert torch.equal(w, before)


def test_initial_vorticity_is_its_fourier_series() -> None:
    nodes = 7
    field = ns.initial_vorticity(4, 5, nodes=nodes)
    stream = np.random.Generator(np.random.Philox(np.random.SeedSequence((4, 5, 0))))
    x = np.arange(nodes) / nodes
    series = np.zeros((nodes, nodes))
    for shell in range(4):
        for k1 in range(-shell, shell + 1):
            for k2 in range(-shell, shell + 1):
                if max(abs(k1), abs(k2)) < shell:
                    continue
                xi, eta = stream.standard_normal(2)
                phase = 2 * np.pi * (k1 * x[:, None] + k2 * x)
                sigma = math.sqrt(2) * 7**1.5 * (4 * np.pi**2 * (k1**2 + k2**2) + 49) ** -1.25
                if shell > 0:
                    series += sigma * (xi * np.cos(phase) - eta * np.sin(phase))
    assert np.abs(field - series).max() <= 1e-14


def test_finer_grids_show_the_same_function() -> None:
    coarse, fine = (ns.initial_vorticity(0, 9, nodes=n) for n in (32, 64))
    k = np.arange(-15, 16)
    low = np.ix_(k, k)
    waves = [np.fft.fft2(field, norm="forward")[low] for field in (coarse, fine)]
    assert np.abs(waves[0] - waves[1]).max() <= 1e-16
    assert 1e-3 < np.sqrt(np.mean((coarse - fine[::2, ::2]) ** 2)) < 0.02


def test_draws_follow_seed_index_and_attempt() -> None:
    field = ns.initial_vorticity(1, 2, 3, nodes=32)
    assert field.dtype == np.float64
    assert abs(field.mean()) <= 1e-16
    assert ns.initial_vorticity(1, 2, 3, nodes=32).tobytes() == field.tobytes()
    for other in ((0, 2, 3), (1, 3, 3), (1, 2, 0), (2, 1, 3)):
        there = ns.initial_vorticity(*other, nodes=32)
        assert abs(np.corrcoef(field.ravel(), there.ravel())[0, 1]) < 0.9


def test_variance_of_the_initial_vorticity_is_the_sum_over_its_modes() -> None:
    def variances(half: int) -> NDArray[np.float64]:
        k = np.arange(-half, half + 1)
        square = np.asarray(k[:, None] ** 2 + k**2, np.float64)
        out: NDArray[np.float64] = 2 * 7.0**3 * (4 * math.pi**2 * square + 49) ** -2.5
        out[half, half] = 0
        return out

    assert math.sqrt(variances(127).sum()) == pytest.approx(0.2620, abs=1e-4)
    samples, expected = 2000, variances(15)
    squares = [np.mean(ns.initial_vorticity(0, i, nodes=32) ** 2) for i in range(samples)]
    # k and -k share a wave: each pair's mean square has variance 4 sigma^4.
    deviation = math.sqrt(2 * float((expected**2).sum()) / samples)  # of the mean: 0.9 %
    assert np.mean(squares) == pytest.approx(expected.sum(), abs=3 * deviation)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_vorticity_that_is_not_finite_is_refused(value: float) -> None:
    w = torch.zeros(3, 8, 8)
    w[1, 0, 4] = value
    with pytest.raises(DataError, match=r"finite; 1 of 3 .* batch index 1"):
        ns.solve(w)


def test_bad_arguments_are_refused() -> None:
    w = torch.zeros(1, 8, 8)
    with pytest.raises(ShapeError, match="at least 4 nodes"):
        ns.solve(torch.zeros(1, 3, 3))
    with pytest.raises(ShapeError, match="not empty"):
        ns.solve(torch.zeros(0, 8, 8))
    with pytest.raises(ShapeError, match="got 2"):
        ns.initial_vorticity(0, 0, nodes=2)
    with pytest.raises(DataError, match="float16"):
        ns.solve(w.half())
    for times in ([], [0.0, 1.0], [-1.0], [2.0, 1.0], [1.0, 1.0], [math.nan], [math.inf]):
        with pytest.raises(DataError, match="increasing"):
            ns.solve(w, times=times)
    for viscosity in (-1e-5, math.nan, math.inf):
        with pytest.raises(DataError, match="viscosity"):
            ns.solve(w, viscosity=viscosity)
    for step in (0.0, -0.1, math.nan):
        with pytest.raises(DataError, match="step"):
            ns.solve(w, step=step)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_agrees_with_cpu() -> None:
    w = draw(5, 64)
    here, there = ns.solve(w, times=[1.0, 5.0]), ns.solve(w.cuda(), times=[1.0, 5.0])
    assert there.frames.is_cuda
    assert there.converged.all()
    assert relative(there.frames.cpu(), here.frames) <= 1e-10
    assert torch.equal(there.steps.cpu(), here.steps)
