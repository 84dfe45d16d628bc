"""Perfect plasticity of von Mises in plane stress: bring a trial stress back to the yield surface.

With A = (s_xx + s_yy) / 2, B = (s_xx - s_yy) / 2 and t = s_xy, the von Mises stress is

    vm² = A² + 3 (B² + t²),

and the flow rule shrinks A by 1 + c_A g, B and t by 1 + c_B g, where c_A = E / (3 (1 - nu)),
c_B = 2 G and g >= 0 is such that vm = sigma_Y. A stress inside the surface stays as it is.

Stresses are stored as (s_xx, s_xy, s_yy): the first two and the last two are the matrix's rows.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

YOUNG, POISSON, YIELD = 200e3, 0.3, 70.0  # MPa
SHEAR = YOUNG / (2 * (1 + POISSON))
C_MEAN, C_SHEAR = YOUNG / (3 * (1 - POISSON)), 2 * SHEAR
NEWTON = 3
TINY = 1e-30


def von_mises(stress: Float[Tensor, " 3 *cells"]) -> Float[Tensor, "*cells"]:
    """Return the von Mises stress of (s_xx, s_xy, s_yy).

    >>> float(von_mises(torch.tensor([3.0, 0.0, 3.0])))
    3.0
    """
    xx, xy, yy = stress.unbind()
    return (((xx + yy) / 2).square() + 3 * (((xx - yy) / 2).square() + xy.square())).sqrt()


def return_to_yield(stress: Float[Tensor, " 3 *cells"]) -> Float[Tensor, " 3 *cells"]:
    """Return the nearest admissible stress, by Newton's method for 1/vm(g) = 1/sigma_Y.

    1/vm is a straight line in g if A or B vanish, and almost one otherwise: three steps are exact
    to 1e-11. Newton's method for vm² leaves vm far too large after a large trial stress.

    >>> return_to_yield(torch.tensor([700.0, 0.0, 700.0])).tolist()
    [70.0, 0.0, 70.0]
    """
    xx, xy, yy = stress.unbind()
    mean, half = (xx + yy) / 2, (xx - yy) / 2
    aa, bb = mean.square(), 3 * (half.square() + xy.square())
    g = torch.zeros_like(aa)
    one, two = torch.ones_like(aa), torch.ones_like(aa)
    for _ in range(NEWTON):
        a, b = aa * one.square(), bb * two.square()
        square = a + b
        slope = C_MEAN * a * one + C_SHEAR * b * two
        # Below the yield surface the step is negative, and g stays 0.
        g = (g + square * (square.sqrt() / YIELD - 1) / (slope + TINY)).clamp_min(0)
        one, two = 1 / (1 + C_MEAN * g), 1 / (1 + C_SHEAR * g)
    mean, half = mean * one, half * two
    return torch.stack((mean + half, xy * two, mean - half))
