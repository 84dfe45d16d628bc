from __future__ import annotations

import math

import pytest
import torch

from ono.train.schedule import learning_rate


@pytest.mark.parametrize("steps", [10, 37, 101, 500])
@pytest.mark.parametrize("peak", [1e-3, 2.0])
def test_onecycle_is_that_of_torch_at_every_step(steps: int, peak: float) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=1.0)
    reference = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, peak, total_steps=steps, pct_start=0.3, div_factor=25, final_div_factor=1e4
    )
    for step in range(steps):
        expected = optimiser.param_groups[0]["lr"]
        assert learning_rate(step, steps, peak) == pytest.approx(expected, abs=1e-9 * peak)
        optimiser.step()
        if step < steps - 1:
            reference.step()


def test_onecycle_follows_its_options() -> None:
    def rate(step: int) -> float:
        return learning_rate(step, 11, 1.0, warmup=0.5, start_factor=10.0, final_factor=100.0)

    assert rate(0) == pytest.approx(0.1)
    assert rate(10) == pytest.approx(0.001)
    rates = [rate(step) for step in range(11)]
    peak = rates.index(max(rates))
    assert 4 <= peak <= 5
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_cosine_falls_from_the_peak_to_zero() -> None:
    rates = [learning_rate(step, 9, 4.0, kind="cosine") for step in range(9)]
    assert rates == pytest.approx([2 + 2 * math.cos(math.pi * step / 8) for step in range(9)])


def test_constant_stays() -> None:
    assert {learning_rate(step, 5, 0.25, kind="constant") for step in range(5)} == {0.25}


@pytest.mark.parametrize("kind", ["onecycle", "cosine", "constant"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_runs_have_a_rate(kind: str, steps: int) -> None:
    for step in range(steps):
        rate = learning_rate(step, steps, 1.0, kind=kind)  # type: ignore[arg-type]
        assert 0 <= rate <= 1
