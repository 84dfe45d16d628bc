"""Plasticity: cells against exact fields, the block against what must hold for every die."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from ono.errors import DataError, ShapeError
from ono.physics import plastic_block, plasticity
from ono.physics.die import TOP, die_heights
from ono.physics.plastic_block import HEIGHT, INTERVAL, SPEED, WIDTH, Motion
from ono.physics.plasticity import Solution
from ono.physics.return_map import POISSON, YIELD, YOUNG, von_mises

COARSE, COARSEST = (11, 4), (6, 3)
F64 = torch.float64


def dies(count: int) -> Tensor:
    return torch.from_numpy(np.stack([die_heights(0, index) for index in range(count)]))


def disturbed(seed: int = 0) -> Motion:
    """Return blocks with uneven cells, velocities, stress and hourglass springs."""
    motion = plastic_block.at_rest(dies(2) + 20, (5, 4), dtype=F64)
    generator = torch.Generator().manual_seed(seed)
    for field, size in ((motion.u, 0.6), (motion.v, 3.0), (motion.stress, 20.0)):
        field += size * torch.randn(field.shape, dtype=F64, generator=generator)
    motion.hourglass.uniform_(-30, 30, generator=generator)
    return motion


def affine(motion: Motion, slope: Tensor) -> Tensor:
    """Return the velocity field slope @ x + (1, 2) on the deformed nodes."""
    x = motion.start + motion.u
    return torch.einsum("cd,dijb->cijb", slope, x) + torch.tensor([1.0, 2.0])[:, None, None, None]


def cell_areas(x: Tensor) -> Tensor:
    """Return the areas of the cells by the shoelace formula."""
    corners = [x[:, :-1, :-1], x[:, 1:, :-1], x[:, 1:, 1:], x[:, :-1, 1:]]
    pairs = zip(corners, corners[1:] + corners[:1], strict=True)
    return sum((a[0] * b[1] - b[0] * a[1] for a, b in pairs), torch.zeros(())) / 2


def positions(solution: Solution, nodes: tuple[int, int] = COARSE) -> Tensor:
    return plastic_block.reference_nodes(nodes) + solution.displacement.double()


@pytest.fixture(scope="module")
def pressed() -> Motion:
    """Three dies and a flat one on the coarsest mesh, to the end."""
    flat = torch.full((1, 101), TOP, dtype=F64)
    motion = plastic_block.at_rest(torch.cat((dies(3), flat)), COARSEST)
    plasticity.march(motion, 100_000)
    return motion


@pytest.fixture(scope="module")
def mixed() -> Solution:
    """Three dies, the mirror image of the first, and one that begins inside the block."""
    heights = dies(3)
    batch = torch.cat((heights, heights[:1].flip(1), heights[:1] - 8))
    return plasticity.solve(batch, nodes=COARSE)


@pytest.fixture(scope="module")
def forged(mixed: Solution) -> Solution:
    """Return what can be forged."""
    fields = (getattr(mixed, field.name)[:4] for field in dataclasses.fields(mixed))
    return Solution(*fields)


def test_internal_forces_balance_and_do_the_work_of_the_stress() -> None:
    motion = disturbed()
    x = motion.start + motion.u
    area = cell_areas(x)
    assert float(area.min()) > 0
    slope = torch.tensor([[0.3, -0.7], [1.1, 0.4]], dtype=F64)
    motion.v.copy_(affine(motion, slope))
    force = plastic_block.forces(motion)
    thickness = WIDTH / 4 * HEIGHT / 3 / area
    xx, xy, yy = motion.stress
    power = xx * slope[0, 0] + yy * slope[1, 1] + xy * (slope[0, 1] + slope[1, 0])
    work = (power * area * thickness).sum((0, 1))
    assert torch.allclose((force * motion.v).sum((0, 1, 2)), -work, rtol=1e-11)
    assert float(force.sum((1, 2)).abs().max()) <= 1e-10
    torque = (x[0] * force[1] - x[1] * force[0]).sum((0, 1))
    assert float(torque.abs().max()) <= 1e-8


def test_hourglass_motion_is_resisted() -> None:
    motion = plastic_block.at_rest(dies(1) + 20, (5, 4), dtype=F64)
    sign = 1.0 - 2 * ((torch.arange(5)[:, None] + torch.arange(4)) % 2)
    motion.v[0] = sign[..., None]
    motion.moved.fill_(1e-4)
    force = plastic_block.forces(motion)
    assert float(motion.stress.abs().max()) <= 1e-12  # the one point sees nothing of it
    assert ((force[0] * motion.v[0]) < 0).all()
    motion.moved.fill_(10.0)
    plastic_block.forces(motion)
    limit = 0.5 * YIELD * math.sqrt(WIDTH / 4 * HEIGHT / 3)
    assert motion.hourglass.norm(dim=0).numpy() == pytest.approx(limit)


def test_uniaxial_loading_has_youngs_modulus_and_unloads_to_zero() -> None:
    motion = disturbed()
    motion.stress.zero_()
    motion.moved.fill_(1.0)
    zero = torch.zeros_like(motion.stress[:2])
    strain = 0.5 * YIELD / YOUNG / 10
    for sign in (1, -1):
        for _ in range(10):
            along_x, along_y = zero.clone(), zero.clone()
            along_x[0], along_y[1] = -POISSON * sign * strain, sign * strain
            plastic_block.update_stress(motion, along_x, along_y)
        expected = 0.5 * YIELD if sign == 1 else 0.0
        assert motion.stress[2].numpy() == pytest.approx(expected, abs=1e-12)
        assert float(motion.stress[:2].abs().max()) <= 1e-12


def test_stress_turns_with_the_block() -> None:
    motion = disturbed()
    motion.stress.copy_(torch.tensor([30.0, 5.0, -10.0])[:, None, None, None])
    motion.moved.fill_(1.0)
    turns, zero = 20000, torch.zeros_like(motion.stress[0])
    angle = zero + math.pi / 2 / turns
    for _ in range(turns // 10):  # a tenth of a quarter turn
        plastic_block.update_stress(motion, torch.stack((zero, angle)), torch.stack((-angle, zero)))
    c, s = math.cos(math.pi / 20), math.sin(math.pi / 20)
    turn = torch.tensor([[c, -s], [s, c]], dtype=F64)
    expected = turn @ torch.tensor([[30.0, 5.0], [5.0, -10.0]], dtype=F64) @ turn.mT
    found = motion.stress[:, 0, 0, 0]
    assert found.tolist() == pytest.approx(
        [float(expected[0, 0]), float(expected[0, 1]), float(expected[1, 1])], abs=1e-2
    )


def test_flat_die_compresses_the_block_evenly(pressed: Motion) -> None:
    assert pressed.sound.all()
    travel = SPEED * 1.9
    # Uniaxial flow at constant volume: both other sides grow alike.
    stretch = (HEIGHT / (HEIGHT - travel)) ** 0.5
    bottom = pressed.frames[-1, 0, :, -1, 3]
    assert float(WIDTH + bottom[0] - bottom[-1]) == pytest.approx(WIDTH * stretch, rel=0.01)
    areas = cell_areas((pressed.start + pressed.frames[-1]).double())[..., 3]
    share = areas / (pressed.cell[0] * pressed.cell[1])
    assert share.numpy() == pytest.approx(1 / stretch, rel=0.03)
    assert float(pressed.stress[2, ..., 3].mean()) == pytest.approx(-YIELD, rel=0.03)
    gap, _ = plastic_block.penetration(pressed)
    spring = plastic_block.CONTACT * pressed.cell[0] / pressed.cell[1]
    force = float((spring * gap[:, 3].clamp_min(0)).sum())
    assert force == pytest.approx(YIELD * WIDTH * HEIGHT / (HEIGHT - travel), rel=0.1)


def test_every_die_is_followed_to_the_end(forged: Solution) -> None:
    assert forged.converged.all()
    assert forged.displacement.shape == (4, 20, *COARSE, 2)
    assert forged.displacement.isfinite().all()
    assert (forged.displacement[:, 0] == 0).all()
    assert (forged.displacement[:, -1].abs().amax((1, 2, 3)) > 3).all()
    assert (forged.displacement[..., -1, 1] == 0).all(), "the bottom stays on the floor"
    assert (forged.displacement[:, -1, :, -1, 0].abs() > 0.05).any(), "and slides on it"
    assert (forged.residual > 0).all()
    assert (forged.residual <= 0.02).all()  # 0.01 on the meshes of the benchmark
    assert (forged.smallest > 0.2).all()
    for frame in positions(forged).movedim(0, -1).movedim(-2, 1):
        assert (cell_areas(frame) > 0).all()


def test_no_node_is_above_the_die(forged: Solution) -> None:
    heights = dies(3)
    motion = plastic_block.at_rest(torch.cat((heights, heights[:1].flip(1))), COARSE, dtype=F64)
    deepest = []
    for frame in range(20):
        motion.u.copy_(forged.displacement[:, frame].movedim((0, -1), (-1, 0)))
        motion.due.fill_(frame * INTERVAL)
        motion.left.zero_()
        gap, slope = plastic_block.penetration(motion)
        deepest.append(float((gap / (1 + slope.square()).sqrt()).max()))
    assert max(deepest) <= 0.02
    assert min(deepest[1:]) > 0, "each die is held by some node"


def test_mirrored_die_gives_the_mirrored_field(forged: Solution) -> None:
    one, other = forged.displacement[0], forged.displacement[3]
    mirrored = other.flip(1) * torch.tensor([-1.0, 1.0])
    assert float((one - mirrored)[-1].norm() / one[-1].norm()) <= 5e-3
    assert float((one - other)[-1].norm() / one[-1].norm()) > 0.2


def test_half_the_step_gives_the_same_field(pressed: Motion) -> None:
    fine = plasticity.solve(dies(3), nodes=COARSEST, courant=plastic_block.COURANT / 2)
    assert (fine.iterations > 1.8 * pressed.steps[:3]).all()
    for sample in range(3):
        last = fine.displacement[sample, -1]
        coarse = pressed.frames[-1, ..., sample].movedim(0, -1)
        assert 0 < float((last - coarse).norm()) <= 0.01 * float(last.norm())


def test_result_does_not_depend_on_batch_mates(mixed: Solution) -> None:
    assert mixed.converged.tolist() == [True, True, True, True, False]
    assert mixed.iterations[4] < 0.5 * mixed.iterations[1]
    alone = plasticity.solve(dies(2)[1:], nodes=COARSE)
    assert torch.equal(alone.displacement[0], mixed.displacement[1])
    assert alone.iterations[0] == mixed.iterations[1]


def test_waiting_changes_nothing() -> None:
    motion = plastic_block.at_rest(dies(1), COARSE)
    for _ in range(10):
        plasticity.advance_round(motion, plasticity.step)
    motion.left.zero_()
    plasticity.step(motion)  # the stress of the last step is still to come
    kept = [x.clone() for x in (motion.u, motion.v, motion.stress, motion.hourglass, motion.steps)]
    for _ in range(20):
        plasticity.step(motion)
    now = (motion.u, motion.v, motion.stress, motion.hourglass, motion.steps)
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))
    assert float(von_mises(motion.stress).max()) == pytest.approx(YIELD, rel=1e-5)


def test_clamped_bottom_does_not_move() -> None:
    motion = plastic_block.at_rest(dies(1), COARSE, slides=False)
    for _ in range(20):
        plasticity.advance_round(motion, plasticity.step)
    assert (motion.u[:, :, -1] == 0).all()
    assert float(motion.u.abs().max()) > 0.1


def test_limit_is_reported_as_not_converged() -> None:
    solution = plasticity.solve(dies(2), nodes=COARSE, limit=100)
    assert solution.iterations.tolist() == [100, 100]
    assert not solution.converged.any()


def test_bad_arguments_are_refused() -> None:
    heights = dies(2)
    with pytest.raises(ShapeError, match=r"\(batch, 101\), got \(2, 100\)"):
        plasticity.solve(heights[:, 1:])
    with pytest.raises(ShapeError, match="got 1 x 4"):
        plasticity.solve(heights, nodes=(1, 4))
    with pytest.raises(DataError, match="Courant"):
        plasticity.solve(heights, courant=1.5)
    heights[1, 3] = torch.inf
    with pytest.raises(DataError, match="batch index 1"):
        plasticity.solve(heights)


COMPILED = """
import numpy as np, torch
from ono.physics import plastic_block, plasticity
from ono.physics.die import die_heights
heights = torch.from_numpy(np.stack([die_heights(0, i) for i in range(3)])).to(DEVICE)
with torch.no_grad():
    one, two = (plastic_block.at_rest(heights, (11, 4)) for _ in range(2))
    plasticity.advance_round(one, plasticity.step)
    fused = torch.compile(plasticity.step, fullgraph=True, dynamic=False, backend="BACKEND")
    plasticity.advance_round(two, fused)
assert one.u.abs().max() > 0.01
assert (one.u - two.u).abs().max() < 1e-5, (one.u - two.u).abs().max()
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_step_compiles_without_a_break(backend: str) -> None:
    code = COMPILED.replace("DEVICE", "'cpu'").replace("BACKEND", backend)
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_full_block_has_the_published_movement() -> None:
    coarse = plasticity.solve(dies(16), nodes=(26, 9))
    assert coarse.converged.all()
    assert (coarse.residual <= 0.01).all()
    # The published frames differ by 0.132 (u_x) and 0.085 mm (u_y) root mean square.
    assert coarse.displacement.diff(dim=1).std((0, 1, 2, 3)).numpy() == pytest.approx(
        [0.132, 0.085], rel=0.12
    )
    fine = plasticity.solve(dies(1), nodes=(51, 16))
    same = fine.displacement[0, -1, ::2, [0, 15]]
    there = coarse.displacement[0, -1, :, [0, 8]]
    assert float((same - there).norm() / same.norm()) <= 0.2


GPU = """
import numpy as np, torch
from ono.physics import plasticity
from ono.physics.die import die_heights
heights = torch.from_numpy(np.stack([die_heights(0, i) for i in range(5)]))
here, there = (plasticity.solve(heights.to(d), nodes=(11, 4)) for d in ("cpu", "cuda"))
assert there.displacement.is_cuda and there.converged.all()
error = (there.displacement.cpu() - here.displacement).norm() / here.displacement.norm()
assert error < 5e-3, error
assert ((there.iterations.cpu() - here.iterations).abs() <= 0.01 * here.iterations).all()
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_agrees_with_cpu() -> None:
    subprocess.run([sys.executable, "-c", GPU], check=True)
