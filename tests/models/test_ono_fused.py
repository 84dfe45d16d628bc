"""Whole operators through the kernels, on small cases that the interpreter can do as well."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, EXACT, KERNELS, ON_GPU, distances
from torch import Tensor

from ono.domain import Domain
from ono.evaluate.calibrate import calibrate
from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.models.ono_fused import flows, folded_flows
from ono.nn.recompute import recompute_blocks
from ono.problem import Problem

pytestmark = KERNELS


@pytest.fixture(autouse=True)
def _in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ono.models.ono_fused.ambient_precision", lambda device: EXACT)


def small(
    eigen: dict[str, Any], times: int = 0, attention: str = "efficient", layers: int = 2
) -> tuple[ONO, Domain, Tensor, Tensor | None]:
    """Return an operator, and a batch of two for it, of more points than one tile has."""
    torch.manual_seed(0)
    lower = {"heads": 4, "attention": attention}
    config = ONOConfig.model_validate(
        {"width": 64, "layers": layers, "lower": lower, "eigen": {"heads": 4, **eigen}}
    )
    problem = Problem(dim=2, in_channels=1, out_channels=2, timed=times > 0)
    domain = Domain.grid((8, 9), batch=2).to(DEVICE)
    time = torch.rand(2, times, device=DEVICE) if times else None
    return ONO(config, problem).to(DEVICE), domain, torch.randn(2, 72, 1, device=DEVICE), time


@pytest.mark.parametrize(
    ("eigen", "times", "attention"),
    [
        ({}, 2, "efficient"),
        ({"covariance": "sample", "heads": 1}, 0, "efficient"),
        ({"norm": "none"}, 0, "efficient"),
        ({"norm": "bn"}, 2, "efficient"),
        ({"norm": "ln"}, 1, "efficient"),
        ({"norm": "ln", "heads": 1}, 0, "efficient"),
        ({}, 0, "galerkin"),
    ],
    ids=[
        "batch, two times",
        "sample, one set",
        "none",
        "bn, two times",
        "ln, one time",
        "ln",
        "galerkin",
    ],
)
def test_outputs_and_gradients_are_those_of_the_modules(
    eigen: dict[str, Any], times: int, attention: str
) -> None:
    model, domain, values, time = small(eigen, times, attention)
    told, measure = model._inputs(domain, values), model._measure(domain)
    found = flows(model, told, time, measure, streams=ON_GPU)
    expected, _ = model.encode(domain, values, time=time)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    given = torch.randn_like(found)
    ours, theirs = (
        torch.autograd.grad(out, list(model.parameters()), given) for out in (found, expected)
    )
    for (name, _), off in zip(model.named_parameters(), distances(ours, theirs), strict=True):
        assert off < 1e-4, name


def test_blocks_that_forget_call_their_attention_again_but_count_for_a_norm_once() -> None:
    model, domain, values, _ = small({"norm": "bn"}, attention="galerkin", layers=1)
    told, measure = model._inputs(domain, values), model._measure(domain)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    found = []
    for again in (False, True):
        model.load_state_dict(before)
        recompute_blocks(model, again)
        out = flows(model, told, None, measure, streams=ON_GPU)
        gradients = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        found.append([*gradients, *(x.clone() for x in model.state_dict().values())])
    assert all(torch.equal(kept, made) for kept, made in zip(*found, strict=True))
    assert any(not torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_frozen_parameters_of_an_attention_and_a_norm_are_left_as_they_are() -> None:
    model, domain, values, _ = small({"norm": "bn"}, attention="galerkin", layers=1)
    frozen = ("lower.0.attention.norm_k", "upper.0.attention.norm.")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    told, measure = model._inputs(domain, values), model._measure(domain)
    flows(model, told, None, measure, streams=ON_GPU).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith(frozen), name


def test_a_calibrated_operator_answers_the_same() -> None:
    model, domain, values, _ = small({})
    calibrate(model, [(domain, values, None)])
    model.eval()
    with torch.no_grad():
        told, measure = model._inputs(domain, values), model._measure(domain)
        found = folded_flows(model, told, None, measure)
        expected, _ = model.encode(domain, values)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
