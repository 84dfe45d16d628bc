"""U-FNO: a U-Net path in the last Fourier layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ono.domain import Domain
from ono.errors import InputError, UnsupportedDomain
from ono.models.u_fno import UFNO
from ono.models.u_fno_config import UFNOConfig
from ono.problem import Problem


@pytest.mark.parametrize(
    ("problem", "options", "count"),
    [
        (Problem.grid((85, 85), in_channels=1, out_channels=1), {}, 2_368_001 + 146_880),
        (
            Problem.grid((64, 64), in_channels=10, out_channels=1),
            {"width": 20},
            926_357 + 57_480,
        ),
        (
            Problem.grid((101, 31), in_channels=1, out_channels=4, kind="structured", timed=True),
            {"modes": (12, 12, 8), "position": "logical"},
            37_757_860 + 521_664,
        ),
        (Problem(2, 0, 1), {}, 2_957_217 + 62_370 + 146_880),
    ],
)
def test_parameters_are_those_of_fno_and_the_path(
    problem: Problem, options: dict[str, Any], count: int
) -> None:
    with torch.device("meta"):
        model = UFNO(UFNOConfig.model_validate(options), problem)
    assert sum(p.numel() for p in model.parameters()) == count


def test_the_path_is_added_in_the_last_layers() -> None:
    problem = Problem.grid((16, 8), in_channels=1, out_channels=1)
    model = UFNO(UFNOConfig(width=8, layers=3, modes=3, unet_layers=1, padding=0), problem).eval()
    domain, a = Domain.grid((16, 8), batch=2), torch.randn(2, 128, 1)
    v = model.lift(torch.cat((a, domain.coords), -1)).mT.reshape(2, 8, 16, 8)
    for layer in list(model.layers)[:2]:
        v = layer(v).relu()
    v = (model.layers[2](v) + model.paths[0](v)).relu()
    torch.testing.assert_close(model(domain, a), model.head(v.flatten(2).mT))


@pytest.mark.parametrize("shape", [(5, 7), (17, 30)])
def test_any_grid_runs_and_samples_are_their_own_in_evaluation(shape: tuple[int, int]) -> None:
    problem = Problem.grid((16, 16), in_channels=1, out_channels=1)
    model = UFNO(UFNOConfig(width=8, modes=3), problem)
    nodes = shape[0] * shape[1]
    a = torch.randn(3, nodes, 1)
    model(Domain.grid(shape, batch=3), a)
    together = model.eval()(Domain.grid(shape, batch=3), a)
    torch.testing.assert_close(together[:1], model(Domain.grid(shape), a[:1]))


def test_clouds_and_times() -> None:
    small: dict[str, Any] = {"width": 8, "modes": 3, "latent": 16}
    model = UFNO(UFNOConfig(**small), Problem(2, 0, 1)).eval()
    domain, nothing = Domain(torch.rand(2, 30, 2)), torch.zeros(2, 30, 0)
    out = model(domain, nothing)
    torch.testing.assert_close(model(domain, nothing, query=domain), out)
    timed = Problem.grid((9, 8), in_channels=1, out_channels=1, timed=True)
    series = UFNO(UFNOConfig(**small), timed)
    out = series(Domain.grid((9, 8), batch=2), torch.randn(2, 72, 1), time=torch.rand(2, 5))
    assert out.shape == (2, 5, 72, 1)


def test_refusals() -> None:
    volume = Problem.grid((4, 4, 4), in_channels=1, out_channels=1, timed=True)
    with pytest.raises(UnsupportedDomain, match="at most three axes, got 4"):
        UFNO(UFNOConfig(), volume)
    with pytest.raises(InputError, match="unet_layers=4, but only 3 layers"):
        UFNO(UFNOConfig(unet_layers=4), Problem(2, 0, 1))
