"""The return map against bisection."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ono.physics.return_map import POISSON, SHEAR, YIELD, YOUNG, return_to_yield, von_mises


def trial(size: float, count: int = 2000) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    stress = torch.randn(3, count, dtype=torch.float64, generator=generator)
    return stress * size * YIELD / von_mises(stress)


def by_bisection(stress: Tensor) -> Tensor:
    """Find g of the flow rule by halving an interval."""
    mean, half, shear = (stress[0] + stress[2]) / 2, (stress[0] - stress[2]) / 2, stress[1]
    c_a, c_b = YOUNG / (3 * (1 - POISSON)), 2 * SHEAR

    def at(g: Tensor) -> Tensor:
        a, b, t = mean / (1 + c_a * g), half / (1 + c_b * g), shear / (1 + c_b * g)
        return torch.stack((a + b, t, a - b))

    low, high = torch.zeros_like(mean), torch.ones_like(mean)
    for _ in range(120):
        middle = (low + high) / 2
        outside = von_mises(at(middle)) > YIELD
        low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
    return at(high)


@pytest.mark.parametrize("size", [1.0001, 1.3, 3.0, 50.0, 1000.0])
def test_return_agrees_with_bisection(size: float) -> None:
    stress = trial(size)
    returned = return_to_yield(stress)
    assert float((returned - by_bisection(stress)).abs().max()) <= 1e-6 * YIELD
    assert float(von_mises(return_to_yield(stress.float())).max()) <= YIELD * (1 + 1e-5)


def test_flow_is_normal_to_the_yield_surface() -> None:
    stress = trial(1.7, 50)
    returned = return_to_yield(stress)
    point = returned.clone().requires_grad_()
    (normal,) = torch.autograd.grad(von_mises(point).sum(), point)
    rows = [[1, 0, -POISSON], [0, 2 * (1 + POISSON), 0], [-POISSON, 0, 1]]
    flow = torch.tensor(rows, dtype=torch.float64) / YOUNG @ (stress - returned)
    flow, normal = flow / flow.norm(dim=0), normal / normal.norm(dim=0)
    assert float((flow - normal).abs().max()) <= 1e-9


def test_stress_inside_the_surface_stays() -> None:
    for size in (0.999, 1e-3, 1e-20, 0.0):
        stress = trial(1.0) * size
        assert float((return_to_yield(stress) - stress).abs().max()) <= 1e-14 * size * YIELD
