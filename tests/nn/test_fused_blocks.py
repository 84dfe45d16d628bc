"""The fused kernels against the modules that define them; run with -m gpu."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ono.domain import Domain
from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.models.ono_fused import fuse_blocks
from ono.nn.attention import EfficientAttention
from ono.nn.blocks import NNBlock, OrthogonalBlock
from ono.nn.eigen_options import EigenOptions
from ono.nn.fused_launch import available, operands
from ono.nn.fused_lower import lower_block, lower_weights
from ono.nn.fused_upper import upper_block, upper_weights
from ono.nn.heads import block_diagonal
from ono.nn.measure import Measure
from ono.nn.mlp import FFN
from ono.nn.orthogonal_attention import Basis, OrthogonalAttention
from ono.nn.recompute import recompute_blocks
from ono.nn.whitening import second_moments
from ono.problem import Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available(), reason="needs a CUDA device and Triton"),
]

WIDTH, HEADS, SHARE, BATCH, POINTS = 64, 4, 16, 3, 150


def measure(kind: str) -> tuple[Measure, Tensor]:
    """Return a measure and which points are real."""
    real = torch.ones(BATCH, POINTS, device="cuda")
    if kind == "uniform":
        return Measure(), real
    weights = torch.rand(BATCH, POINTS, device="cuda")
    if kind == "padded":
        real[1, 100:] = 0
        real[2, 3:] = 0
    weights = weights * real
    return Measure(weights / weights.sum(-1, keepdim=True)), real


def read(*pairs: tuple[Tensor, Tensor]) -> Tensor:
    return torch.stack([(x * weight).sum().double() for x, weight in pairs]).sum()


def shaken(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.5)


def compare(
    plain: Callable[[], Tensor], fused: Callable[[], Tensor], leaves: list[Tensor], tolerance: float
) -> None:
    expected = torch.autograd.grad(plain(), leaves)
    got = torch.autograd.grad(fused(), leaves)
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert ours.shape == theirs.shape
        assert float((ours - theirs).norm() / theirs.norm()) < tolerance, number


@pytest.mark.parametrize("kind", ["uniform", "weights", "padded"])
def test_lower_block_is_the_nn_block(kind: str) -> None:
    torch.manual_seed(0)
    block = NNBlock(EfficientAttention(WIDTH, HEADS), WIDTH, WIDTH).cuda()
    w_q = nn.Linear(WIDTH, WIDTH).cuda()
    shaken(block)
    shaken(w_q)
    space, real = measure(kind)
    g = torch.randn(BATCH, POINTS, WIDTH, device="cuda", requires_grad=True)
    to_g, to_features = (torch.randn_like(g) * real[..., None] for _ in range(2))
    to_gram = torch.randn(BATCH, HEADS, SHARE, SHARE, device="cuda")
    to_gram = to_gram + to_gram.mT

    def plain() -> Tensor:
        after, _ = block(g, space)
        features = w_q(after)
        gram = second_moments(features, HEADS, space)
        return read((after, to_g), (features, to_features), (gram, 10 * to_gram))

    def fused() -> Tensor:
        weights = operands(lower_weights(block, w_q), "bf16x6")
        after, features, grams = lower_block(block, w_q, weights, g, space, SHARE)
        gram = grams.sum(1).unflatten(-1, (HEADS, SHARE)).transpose(1, 2)
        return read((after, to_g), (features, to_features), (gram, 10 * to_gram))

    leaves = [g, *block.parameters(), *w_q.parameters()]
    assert torch.allclose(plain(), fused(), rtol=1e-4)
    compare(plain, fused, leaves, 2e-5)


@pytest.mark.parametrize("kind", ["uniform", "padded"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("own_kernel", [False, True])
def test_upper_block_is_the_orthogonal_block(kind: str, times: int, own_kernel: bool) -> None:
    torch.manual_seed(0)
    attention = OrthogonalAttention(WIDTH, WIDTH, EigenOptions(functions=SHARE, heads=HEADS))
    block = OrthogonalBlock(attention, FFN(WIDTH, WIDTH), WIDTH, "pre").cuda()
    shaken(block)
    space, real = measure(kind)
    shape = (BATCH, times, POINTS, WIDTH) if times > 1 else (BATCH, POINTS, WIDTH)
    h = torch.randn(shape, device="cuda", requires_grad=True)
    features = torch.randn(BATCH, POINTS, WIDTH, device="cuda", requires_grad=True)
    blocks = (BATCH, HEADS, SHARE, SHARE) if own_kernel else (HEADS, SHARE, SHARE)
    kernel = torch.randn(blocks, device="cuda", dtype=torch.float64, requires_grad=True)
    seen = real[:, None, :, None] if times > 1 else real[..., None]
    to_h = torch.randn_like(h) * seen

    def plain() -> Tensor:
        after, _ = block(Basis(features, block_diagonal(kernel), kernel), h, space)
        return read((after, to_h))

    def fused() -> Tensor:
        weights = operands(upper_weights(block), "bf16x6")
        after = upper_block(block, weights, features, kernel, h, space)
        return read((after, to_h))

    used = [p for name, p in block.named_parameters() if "w_q" not in name and "mu" not in name]
    compare(plain, fused, [h, features, kernel, *used], 2e-5)


@pytest.mark.parametrize("covariance", ["batch", "ema", "sample"])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 1e-4), ("tf32", 1e-2), ("bf16", 8e-2)]
)
def test_a_fused_operator_is_the_plain_one(
    covariance: str, precision: str, tolerance: float
) -> None:
    """Both against float64: fused kernels must not be further from it than twice the plain ones."""
    config = ONOConfig.model_validate({"layers": 3, "eigen": {"covariance": covariance}})
    torch.manual_seed(0)
    model = ONO(config, Problem(dim=2, in_channels=1, out_channels=1)).cuda()
    domain = Domain.grid((23, 29), batch=3).to("cuda")
    values = torch.randn(3, 23 * 29, 1, device="cuda")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")

    def run(fused: bool, kind: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        twin = ONO(config, model.problem).cuda().to(kind)
        twin.load_state_dict(model.state_dict())
        fuse_blocks(twin, fused)
        assert domain.weights is not None
        where = Domain(domain.coords.to(kind), domain.shape, domain.weights.to(kind))
        half = precision == "bf16" and kind == torch.float32
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            output = twin(where, values.to(kind))
        gradients = torch.autograd.grad(output.square().mean(), list(twin.parameters()))
        return output.detach().double(), [gradient.double() for gradient in gradients]

    def distance(ours: Tensor, theirs: Tensor) -> float:
        return float((ours - theirs).norm() / theirs.norm())

    try:
        exact, slopes = run(False, torch.float64)
        plain, _ = run(False, torch.float32)
        fused, fused_slopes = run(True, torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)
    assert distance(fused, exact) < max(2 * distance(plain, exact), 1e-5)
    worst = max(distance(a, b) for a, b in zip(fused_slopes, slopes, strict=True))
    assert worst < tolerance


def test_recomputed_blocks_have_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = ONO(ONOConfig(layers=2), Problem(dim=2, in_channels=1, out_channels=1)).cuda()
    domain = Domain.grid((17, 19), batch=2).to("cuda")
    values = torch.randn(2, 17 * 19, 1, device="cuda")
    fuse_blocks(model)
    gradients = []
    for again in (False, True):
        recompute_blocks(model, again)
        loss = model(domain, values).square().mean()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for kept, recomputed in zip(*gradients, strict=True):
        assert torch.equal(kept, recomputed)
