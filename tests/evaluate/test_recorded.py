"""Calls that are recorded, and the fused kernels in evaluation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ono import ONO, Domain, ONOConfig, Problem, Recorded, calibrate
from ono.errors import InputError, ShapeError
from ono.models.fno import FNO
from ono.models.fno_config import FNOConfig
from ono.models.ono_fused import folded_flows, fused_evaluation
from ono.nn.fused_launch import available

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
FUSED = pytest.mark.skipif(not available(), reason="needs a CUDA device and Triton")


def model(*, timed: bool = False, **eigen: object) -> ONO:
    """Return a calibrated ONO that the fused kernels cover, with weights of some size."""
    config = ONOConfig.model_validate(
        {"width": 64, "layers": 3, "lower": {"heads": 4}, "eigen": {"heads": 4} | eigen}
    )
    torch.manual_seed(0)
    made = ONO(config, Problem(dim=2, in_channels=1, out_channels=2, timed=timed))
    for parameter in made.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    calibrate(made, [inputs(0)])
    return made.eval()


def inputs(seed: int, batch: int = 3) -> tuple[Domain, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return Domain.grid((11, 11), batch=batch), torch.randn(batch, 121, 1, generator=draw)


def test_a_recording_needs_a_gpu() -> None:
    with pytest.raises(InputError, match="needs a GPU, and the operator is on cpu"):
        Recorded(model(), *inputs(0))


@torch.no_grad()
def test_evaluation_is_fused_only_where_it_was_asked_for() -> None:
    some, other = model(), model(norm="none")
    with fused_evaluation(torch.nn.ModuleList([some, other])) as count:
        assert count == 1
        assert some._folded_flows() is folded_flows
        with torch.enable_grad():
            assert some._folded_flows() is None
        next(some.orthogonal_attentions()).fold = False
        assert some._folded_flows() is None
    assert some.folded_flows is None


@pytest.mark.gpu
@FUSED
@torch.no_grad()
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("timed", [False, True])
def test_fused_evaluation_agrees_with_the_plain_one(heads: int, timed: bool) -> None:
    made = model(timed=timed, heads=heads).cuda()
    domain, values = inputs(1)
    domain, values = domain.to("cuda"), values.cuda()
    time = torch.rand(3, 2).cuda() if timed else None
    plain = made(domain, values, time=time)
    with fused_evaluation(made):
        fused = made(domain, values, time=time)
    assert fused.shape == plain.shape
    assert not torch.equal(fused, plain)
    assert float((fused - plain).norm() / plain.norm()) < 1e-5


@pytest.mark.gpu
@GPU
@torch.no_grad()
def test_a_recording_answers_as_the_model_does() -> None:
    made = model().cuda()
    quick = Recorded(made, *inputs(0))
    for seed in (0, 1, 2):
        domain, values = inputs(seed)
        domain = replace(domain, coords=domain.coords**1.1)
        expected = made(domain.to("cuda"), values.cuda())
        answer = quick(domain, values)
        assert float((answer - expected).norm() / expected.norm()) < 1e-5
    first = quick(*inputs(1))
    kept = first.clone()
    quick(*inputs(2))
    assert torch.equal(first, kept), "an answer is not overwritten by the next"
    next(made.orthogonal_attentions()).raw_mu.add_(0.5)
    made.train()
    domain, values = inputs(3)
    calibrate(made, [(domain.to("cuda"), values.cuda())])
    domain, values = inputs(1)
    expected = made.eval()(domain.to("cuda"), values.cuda())
    assert float((quick(domain, values) - expected).norm() / expected.norm()) < 1e-5
    assert not torch.allclose(expected, kept, rtol=1e-3)


@pytest.mark.gpu
@GPU
@torch.no_grad()
def test_other_models_are_recorded_too() -> None:
    torch.manual_seed(0)
    problem = Problem.grid((11, 11), in_channels=1, out_channels=1)
    made = FNO(FNOConfig(width=8, modes=3), problem).cuda()
    quick = Recorded(made, *inputs(0))
    assert made.training, "it is as it was"
    domain, values = inputs(1)
    expected = made.eval()(domain.to("cuda"), values.cuda())
    assert torch.allclose(quick(domain, values), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@GPU
def test_other_shapes_are_refused() -> None:
    quick = Recorded(model().cuda(), *inputs(0))
    with pytest.raises(ShapeError, match="make another recording"):
        quick(*inputs(0, batch=2))
    domain, values = inputs(0)
    with pytest.raises(ShapeError, match=r"weights \[3, 121\]"):
        quick(replace(domain, weights=None), values)
    with pytest.raises(ShapeError, match="on a grid"):
        quick(replace(domain, shape=None), values)
