"""What only a GPU can show; run with -m gpu."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ono.domain import Domain
from ono.evaluate.calibrate import calibrate
from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.nn.whitening import Whitening, failed_factorisations
from ono.problem import Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def case(nodes: int = 29, batch: int = 4) -> tuple[Domain, Tensor]:
    torch.manual_seed(1)
    return Domain.grid((nodes, nodes), batch=batch), torch.randn(batch, nodes**2, 1)


def build() -> ONO:
    torch.manual_seed(0)
    return ONO(ONOConfig(width=64, layers=4), Problem(dim=2, in_channels=1, out_channels=1))


def test_cuda_agrees_with_cpu() -> None:
    model, (domain, values) = build().double(), case()
    domain, values = Domain(domain.coords.double(), domain.shape), values.double()
    here = model(domain, values)
    there = model.cuda()(domain.to("cuda"), values.cuda())
    assert torch.allclose(there.cpu(), here, rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("attention", ["efficient", "linear", "galerkin", "softmax", "nystrom"])
def test_a_training_pass_never_waits_for_the_device(attention: str) -> None:
    torch.manual_seed(0)
    config = ONOConfig.model_validate({"width": 64, "layers": 2, "lower": {"attention": attention}})
    model = ONO(config, Problem(dim=2, in_channels=1, out_channels=1)).cuda()
    domain, values = case()
    domain, values = domain.to("cuda"), values.cuda()
    model(domain, values).square().mean().backward()  # libraries may synchronise when they load
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(domain, values).square().mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_orthonormality_holds_at_every_precision(precision: str) -> None:
    """‖mean ψᵀψ - I‖ ≤ 1e-3 + sqrt(k) ρ cond(C) on the calibration data; nothing failed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        model, (domain, values) = build().cuda(), case(43)
        domain, values = domain.to("cuda"), values.cuda()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            model(domain, values)
            calibrate(model, [(domain, values)])
            model.eval()
            with torch.no_grad():
                psi = model.eigenfunctions(domain, values, layer=3).double()
        weights = domain.measure()
        assert weights is not None
        gram = torch.einsum("bn,bnhi,bnhj->hij", weights.double(), psi, psi) / domain.batch
        identity = torch.eye(16, device="cuda", dtype=torch.float64)
        attention = list(model.orthogonal_attentions())[3]
        assert isinstance(attention.norm, Whitening)
        covariance = attention.norm.moments.exact
        for head in range(8):
            condition = float(torch.linalg.cond(covariance[head]))
            # bfloat16 features are rounded after whitening too, hence their own rounding unit.
            rounding = 1e-3 if precision != "bf16" else 2e-2
            bound = rounding + math.sqrt(16) * 1e-5 * condition
            assert float((gram[head] - identity).norm()) <= bound
        assert failed_factorisations(model) == 0
    finally:
        torch.set_float32_matmul_precision(before)
