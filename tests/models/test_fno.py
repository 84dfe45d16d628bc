"""The Fourier neural operator: published sizes, every resolution, refusals."""

from __future__ import annotations

import importlib
import importlib.util
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from ono.domain import Domain
from ono.errors import InputError, ShapeError, UnsupportedDomain
from ono.models.fno import FNO
from ono.models.fno_config import FNOConfig
from ono.nn.spectral import SpectralConv, analyse
from ono.problem import Problem


def build(shape: tuple[int, ...], *, timed: bool = False, **options: Any) -> FNO:
    config = FNOConfig.model_validate({"width": 8, "layers": 2, "modes": 4, **options})
    torch.manual_seed(0)
    problem = Problem.grid(shape, in_channels=1, out_channels=2, timed=timed)
    return FNO(config, problem).double()


@pytest.mark.parametrize(("inputs", "width", "count"), [(1, 32, 2_368_001), (10, 20, 926_357)])
def test_parameters_are_as_many_as_published(inputs: int, width: int, count: int) -> None:
    with torch.device("meta"):
        problem = Problem.grid((64, 64), in_channels=inputs, out_channels=1)
        model = FNO(FNOConfig(width=width), problem)
    assert sum(p.numel() for p in model.parameters()) == count


def test_model_is_its_formula() -> None:
    model = build((7, 6), padding=0.5)
    domain, a = Domain.grid((7, 6), batch=2, dtype=torch.float64), torch.randn(2, 42, 1).double()
    v = model.lift(torch.cat((a, domain.coords), -1)).mT.reshape(2, 8, 7, 6)
    v = torch.nn.functional.pad(v, (0, 1, 0, 2))  # 2.5 and 3 steps, less the one that is there
    first, last = model.layers
    v = last(torch.nn.functional.gelu(first(v)))[:, :, :7, :6]
    torch.testing.assert_close(model(domain, a), model.head(v.flatten(2).mT))


def test_a_function_keeps_its_image_on_another_grid() -> None:
    """On the torus; the coordinates are periodic too, as a jump has no last wave number."""

    def on(n: int) -> Tensor:
        x = torch.arange(n, dtype=torch.float64) / n
        x, y = (2 * math.pi * axis.flatten() for axis in torch.meshgrid(x, x, indexing="ij"))
        domain = Domain(torch.stack((x.sin(), y.cos()), -1)[None] / 2, (n, n))
        out: Tensor = model(domain, (torch.sin(x + y) + torch.cos(2 * x))[None, :, None] / 2)
        return analyse(out.mT.unflatten(2, (n, n)), (4, 4))

    model = build((33, 33), padding=0)
    coarse, fine = on(33), on(65)
    assert float(fine.detach().abs().max()) > 1e-2
    torch.testing.assert_close(coarse, fine, rtol=0, atol=1e-8)


@pytest.mark.parametrize("shape", [(3, 5), (16, 9), (29, 29)])
def test_any_grid_of_two_axes_runs(shape: tuple[int, ...]) -> None:
    model = build((17, 17), modes=12)
    nodes = math.prod(shape)
    domain = Domain.grid(shape, batch=2, dtype=torch.float64)
    assert model(domain, torch.randn(2, nodes, 1).double()).shape == (2, nodes, 2)


@pytest.mark.parametrize("shape", [(16,), (6, 7, 8)])
def test_grids_of_one_and_three_axes(shape: tuple[int, ...]) -> None:
    nodes = math.prod(shape)
    domain = Domain.grid(shape, batch=2, dtype=torch.float64)
    assert build(shape)(domain, torch.randn(2, nodes, 1).double()).shape == (2, nodes, 2)


def test_times_are_an_axis_of_the_grid() -> None:
    model = build((9, 8), timed=True, modes=(3, 3, 2))
    domain, a = Domain.grid((9, 8), batch=2, dtype=torch.float64), torch.randn(2, 72, 1).double()
    time = torch.linspace(0, 1, 5).double().expand(2, -1)
    out = model(domain, a, time=time)
    assert out.shape == (2, 5, 72, 2)
    query = Domain(domain.coords[:, [0, 40]])
    torch.testing.assert_close(model(domain, a, time=time, query=query), out[:, :, [0, 40]])
    with pytest.raises(ShapeError, match=r"together as \[batch time\]"):
        model(domain, a, time=time[:, 0])


def test_samples_do_not_see_each_other() -> None:
    model = build((9, 8))
    domain, a = Domain.grid((9, 8), batch=3, dtype=torch.float64), torch.randn(3, 72, 1).double()
    alone = model(Domain.grid((9, 8), dtype=torch.float64), a[1:2])
    torch.testing.assert_close(model(domain, a)[1:2], alone)


def test_bfloat16_stays_near_float32() -> None:
    model = build((17, 17)).float()
    domain, a = Domain.grid((17, 17), batch=2), torch.randn(2, 289, 1)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(domain, a)
    torch.testing.assert_close(half.float(), model(domain, a), rtol=0.05, atol=0.02)


def test_refusals_say_what_to_use() -> None:
    cloud = Problem(dim=2, in_channels=1, out_channels=1, points=972)
    with pytest.raises(UnsupportedDomain, match=r"uniform grid, got 972 scattered points.*geo-fno"):
        FNO(FNOConfig(), cloud)
    mesh = Problem.grid((221, 51), in_channels=1, out_channels=1, kind="structured")
    with pytest.raises(UnsupportedDomain, match="got a structured mesh of 221 x 51 nodes"):
        FNO(FNOConfig(), mesh)
    with pytest.raises(InputError, match=r"modes \(4, 4, 4\) for 3 axes, its grid has 2"):
        build((9, 9), modes=(4, 4, 4))
    with pytest.raises(UnsupportedDomain, match="scattered points"):
        build((9, 8))(Domain(torch.rand(1, 72, 2).double()), torch.zeros(1, 72, 1).double())


@pytest.mark.slow
def test_compiled_models_agree_with_eager() -> None:
    script = """
import torch
from ono.domain import Domain
from ono.models.fno import FNO
from ono.models.fno_config import FNOConfig
from ono.models.geo_fno import GeoFNO
from ono.models.geo_fno_config import GeoFNOConfig
from ono.models.u_fno import UFNO
from ono.models.u_fno_config import UFNOConfig
from ono.problem import Problem
torch.manual_seed(0)
grid = Problem.grid((9, 9), in_channels=1, out_channels=1)
cloud = Problem(dim=2, in_channels=1, out_channels=1)
small = {"width": 8, "layers": 2, "modes": 3}
for model in (FNO(FNOConfig(**small), grid), GeoFNO(GeoFNOConfig(**small, latent=8), cloud),
              UFNO(UFNOConfig(**small), grid)):
    domain, a = Domain.grid((9, 9), batch=2), torch.randn(2, 81, 1)
    if model.problem.kind == "cloud":
        domain = Domain(torch.rand(2, 81, 2))
    outputs, gradients = [], []
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        outputs.append(call(domain, a))
        first = next(model.parameters())
        gradients.append(torch.autograd.grad(outputs[-1].square().sum(), first)[0])
    assert torch.allclose(*outputs, atol=1e-5), (outputs[0] - outputs[1]).abs().max()
    assert torch.allclose(*gradients, rtol=1e-3, atol=1e-6)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("neuralop") is None, reason="needs the package neuraloperator"
)
@pytest.mark.filterwarnings("ignore")
def test_spectral_layer_equals_that_of_neuraloperator() -> None:
    theirs_at = importlib.import_module("neuralop.layers.spectral_convolution")
    torch.manual_seed(0)
    ours = SpectralConv(3, 5, (4, 5))
    # Theirs counts wave numbers of both signs, from -4 to 3, and halves the last axis.
    theirs = theirs_at.SpectralConv(3, 5, n_modes=(8, 8), bias=False)
    ordered = torch.fft.fftshift(torch.view_as_complex(ours.weight.detach()), dim=0)
    with torch.no_grad():
        theirs.weight.tensor.copy_(ordered.permute(2, 3, 0, 1))
    v = torch.randn(2, 3, 16, 17)
    torch.testing.assert_close(ours(v), theirs(v), rtol=1e-5, atol=1e-6)
