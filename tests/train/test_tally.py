"""Counters and running covariances of a step."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE, KERNELS

from ono.nn.moments import Moments
from ono.train.tally import Tally


def moments(layers: int = 3) -> list[Moments]:
    draw = torch.Generator().manual_seed(layers)
    parts = [Moments(torch.eye(5).repeat(2, 1, 1), momentum=0.9) for _ in range(layers)]
    for part in parts:
        part.observe(torch.randn(2, 5, 5, generator=draw, dtype=torch.float64), 4)
    return parts


def test_moments_of_a_tally_are_folded_like_each_alone() -> None:
    together, alone = moments(), moments()
    tally = Tally(together, torch.device("cpu"), quick=False)
    for applied in (True, False, True):
        tally.add(torch.tensor([0.5, 0.25]), torch.tensor(applied))
        for mine, theirs in zip(together, alone, strict=True):
            if applied:
                theirs.running.lerp_(theirs.total / theirs.weight, 1 - 0.9)
            assert torch.allclose(mine.running, theirs.running, rtol=1e-14, atol=0)
            assert not mine.total.any()
            assert float(mine.weight) == 0
            for part in (mine, theirs):
                part.reset()
                part.observe(torch.full((2, 5, 5), 3.0, dtype=torch.float64), 2)
    assert [float(part.updates) for part in together] == [2, 2, 2]
    assert int(tally.skipped) == 1
    assert tally.take_mean_loss() == 0.375
    assert tally.take_mean_loss() == 0


def test_sums_that_are_not_finite_do_not_reach_a_running_mean() -> None:
    parts = moments()
    before = [part.running.clone() for part in parts]
    tally = Tally(parts, torch.device("cpu"), quick=False)
    parts[1].total.fill_(torch.nan)
    tally.add(torch.tensor([torch.nan]), torch.tensor(False))
    assert all(torch.equal(part.running, old) for part, old in zip(parts, before, strict=True))
    assert tally.take_mean_loss() == 0


def test_a_layer_that_saw_nothing_stays_as_it_is() -> None:
    parts = moments()
    parts[0].reset()
    tally = Tally(parts, torch.device("cpu"), quick=False)
    tally.add(torch.ones(1), torch.tensor(True))
    assert [float(part.updates) for part in parts] == [0, 1, 1]
    assert not parts[0].running.any()


@pytest.mark.parametrize("layers", [pytest.param(n, marks=KERNELS) for n in (0, 3)])
def test_the_kernel_counts_the_same(layers: int) -> None:
    device = torch.device(DEVICE)
    kinds = [[part.to(device) for part in moments(layers)] for _ in range(2)]
    plain, quick = (Tally(m, device, quick=q) for m, q in zip(kinds, (False, True), strict=True))
    for number in range(4):
        bad = number == 2
        losses = torch.rand(7, device=device) + (torch.nan if bad else 0)
        for parts, tally in zip(kinds, (plain, quick), strict=True):
            for part in parts[number % 2 :]:
                part.observe(part.running + (torch.nan if bad else number), 2)
            tally.add(losses, torch.tensor(not bad, device=device))
    for name, counter in plain.counters().items():
        assert float(quick.counters()[name]) == pytest.approx(float(counter), rel=1e-14)
    for mine, theirs in zip(kinds[1], kinds[0], strict=True):
        for name in ("running", "updates", "total", "weight"):
            assert torch.allclose(getattr(mine, name), getattr(theirs, name), rtol=1e-14, atol=0)
