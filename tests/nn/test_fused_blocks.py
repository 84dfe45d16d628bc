"""The kernels of fused blocks against the modules that define them."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE, EXACT, KERNELS, ON_GPU, described
from torch import Tensor, nn

from ono.nn.attention import (
    Attention,
    EfficientAttention,
    GalerkinAttention,
    LinearAttention,
    NystromAttention,
    SoftmaxAttention,
)
from ono.nn.blocks import NNBlock, OrthogonalBlock
from ono.nn.eigen_options import EigenOptions
from ono.nn.fused_launch import Setting, operands
from ono.nn.fused_lower import (
    grams_of,
    lower_backward,
    lower_forward,
    lower_gradients,
    lower_parameters,
    lower_weights,
)
from ono.nn.fused_mixing import Whitened, mixing_backward, mixing_forward
from ono.nn.fused_upper import (
    upper_backward,
    upper_forward,
    upper_gradients,
    upper_parameters,
    upper_weights,
)
from ono.nn.heads import block_diagonal
from ono.nn.measure import Measure
from ono.nn.mlp import FFN
from ono.nn.orthogonal_attention import Basis, OrthogonalAttention
from ono.nn.whitening import Whitening, second_moments

pytestmark = KERNELS

WIDTH, HEADS, SHARE = 64, 4, 16
BATCH, POINTS = (3, 150) if ON_GPU else (2, 100)
SETS, TIMES = ([1, 2, HEADS], [1, 3]) if ON_GPU else ([1, HEADS], [2])


def measure(kind: str) -> tuple[Measure, Tensor]:
    """Return a measure and which points are real."""
    real = torch.ones(BATCH, POINTS, device=DEVICE)
    if kind == "uniform":
        return Measure(), real
    weights = torch.rand(BATCH, POINTS, device=DEVICE)
    if kind == "padded":
        real[1, 70:] = 0
        real[-1, 3:] = 0
    weights = weights * real
    return Measure(weights / weights.sum(-1, keepdim=True)), real


def shaken(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.5)


def compare(got: list[Tensor], expected: tuple[Tensor, ...], tolerance: float) -> None:
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert ours.shape == theirs.shape
        assert float((ours - theirs).norm() / theirs.norm()) < tolerance, number


@pytest.mark.parametrize("kind", ["uniform", "weights", "padded"])
@pytest.mark.parametrize("sets", SETS)
def test_lower_block_is_the_nn_block(kind: str, sets: int) -> None:
    compare_lower_blocks(EfficientAttention(WIDTH, HEADS), kind, sets)


@pytest.mark.parametrize(
    ("attention", "kind"),
    [
        (LinearAttention(WIDTH, 2), "padded"),
        (GalerkinAttention(WIDTH, HEADS), "weights"),
        (SoftmaxAttention(WIDTH, HEADS), "uniform"),
        (
            NystromAttention(WIDTH, HEADS, landmarks=8, iterations=3, index_convolution=True),
            "padded",
        ),
    ],
    ids=["linear", "galerkin", "softmax", "nystrom"],
)
def test_so_is_a_lower_block_around_an_attention_of_torch(attention: Attention, kind: str) -> None:
    compare_lower_blocks(attention, kind, sets=1)


def compare_lower_blocks(attention: Attention, kind: str, sets: int) -> None:
    torch.manual_seed(0)
    between = None if isinstance(attention, EfficientAttention) else attention
    block = NNBlock(attention, WIDTH, WIDTH).to(DEVICE)
    w_q = nn.Linear(WIDTH, sets * SHARE).to(DEVICE)
    shaken(block)
    shaken(w_q)
    space, real = measure(kind)
    g = torch.randn(BATCH, POINTS, WIDTH, device=DEVICE, requires_grad=True)
    d_after = torch.randn_like(g) * real[..., None]
    d_features = torch.randn(BATCH, POINTS, sets * SHARE, device=DEVICE) * real[..., None]
    d_gram = 10 * torch.randn(BATCH, sets, SHARE, SHARE, device=DEVICE)
    d_gram = d_gram + d_gram.mT
    parameters = lower_parameters(block, w_q)

    after, _ = block(g, space)
    features = w_q(after)
    gram = second_moments(features, sets, space)
    given = (d_after, d_features, d_gram.double())
    expected = torch.autograd.grad((after, features, gram), (g, *parameters), given)

    setting = Setting(space.weights, SHARE, EXACT)
    with torch.no_grad():
        multiplied = operands(lower_weights(block, w_q), EXACT)
        kept = lower_forward(g, parameters, multiplied, setting, between)
        grams = grams_of(kept.features, setting)
        compact = d_gram.transpose(1, 2).flatten(2).contiguous()
        given = (d_after, d_features, compact)
        d_g, owed, own = lower_backward(kept, given, parameters, multiplied, setting)
        others = lower_gradients(owed, setting.precision)
    seen = real[..., None] > 0
    for ours, theirs in ((kept.after, after), (kept.features, features)):
        assert torch.allclose(ours * seen, theirs * seen, rtol=1e-4, atol=1e-4)
    total = grams.sum(1).unflatten(-1, (sets, SHARE)).transpose(1, 2)
    assert torch.allclose(
        total, gram.float(), rtol=1e-4, atol=1e-6 * float(gram.detach().abs().max())
    )
    found = [gradient for gradient in (d_g, *others, *own) if gradient is not None]
    compare(found, expected, 2e-5)


@pytest.mark.parametrize("kind", ["uniform", "padded"])
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("own_kernel", [False, True])
@pytest.mark.parametrize("sets", SETS)
def test_upper_block_is_the_orthogonal_block(
    kind: str, times: int, own_kernel: bool, sets: int
) -> None:
    torch.manual_seed(0)
    attention = OrthogonalAttention(WIDTH, WIDTH, EigenOptions(functions=SHARE, heads=sets))
    block = OrthogonalBlock(attention, FFN(WIDTH, WIDTH), WIDTH, "pre").to(DEVICE)
    shaken(block)
    space, real = measure(kind)
    shape = (BATCH, times, POINTS, WIDTH) if times > 1 else (BATCH, POINTS, WIDTH)
    h = torch.randn(shape, device=DEVICE, requires_grad=True)
    features = torch.randn(BATCH, POINTS, sets * SHARE, device=DEVICE, requires_grad=True)
    groups = BATCH if own_kernel else 1
    kernel = torch.randn(groups, sets, SHARE, SHARE, device=DEVICE, dtype=torch.float64)
    kernel.requires_grad_()
    seen = real[:, None, :, None] if times > 1 else real[..., None]
    d_after = torch.randn_like(h) * seen
    parameters = upper_parameters(block)

    mixing = block_diagonal(kernel if own_kernel else kernel[0])
    after, _ = block(Basis(features, mixing, kernel), h, space)
    expected = torch.autograd.grad(after, (h, features, kernel, *parameters), d_after)

    setting = Setting(space.weights, SHARE, EXACT)
    with torch.no_grad():
        multiplied = operands(upper_weights(block), EXACT)
        kept, ours = upper_forward(h, features, kernel, parameters, multiplied, setting)
        *found, d_kernels, owed = upper_backward(kept, d_after, parameters, multiplied, setting)
        d_kernel = d_kernels.unflatten(0, (len(kernel), -1)).sum(1)
        others = upper_gradients(owed, setting.precision)
    assert torch.allclose(ours * seen, after * seen, rtol=1e-4, atol=1e-4)
    compare([*found, d_kernel, *others], expected, 2e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device and Triton")
@pytest.mark.parametrize("kind", ["uniform", "padded"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("sets", [1, HEADS])
@pytest.mark.parametrize("tight", [False, True])
def test_blocks_are_the_same_by_address_and_by_descriptor(
    kind: str, times: int, sets: int, tight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    block = NNBlock(EfficientAttention(WIDTH, HEADS), WIDTH, WIDTH).to(DEVICE)
    attention = OrthogonalAttention(WIDTH, WIDTH, EigenOptions(functions=SHARE, heads=sets))
    above = OrthogonalBlock(attention, FFN(WIDTH, WIDTH), WIDTH, "pre").to(DEVICE)
    w_q = nn.Linear(WIDTH, sets * SHARE).to(DEVICE)
    for module in (block, above, w_q):
        shaken(module)
    space, _ = measure(kind)
    g, d_g_after = (torch.randn(BATCH, POINTS, WIDTH, device=DEVICE) for _ in range(2))
    h, d_h_after = (torch.randn(BATCH, times, POINTS, WIDTH, device=DEVICE) for _ in range(2))
    d_features = torch.randn(BATCH, POINTS, sets * SHARE, device=DEVICE)
    d_gram = torch.randn(BATCH, sets, SHARE, SHARE, device=DEVICE)
    d_gram = (d_gram + d_gram.mT).transpose(1, 2).flatten(2).contiguous()
    kernel = torch.randn(BATCH, sets, SHARE, SHARE, device=DEVICE, dtype=torch.float64)
    setting = Setting(space.weights, SHARE, "bf16")

    def found() -> list[Tensor]:
        own, multiplied = lower_parameters(block, w_q), operands(lower_weights(block, w_q), "bf16")
        kept = lower_forward(g, own, multiplied, setting)
        given = (d_g_after, d_features, d_gram)
        d_g, owed, _ = lower_backward(kept, given, own, multiplied, setting)
        own, multiplied = upper_parameters(above), operands(upper_weights(above), "bf16")
        read, after = upper_forward(h, kept.features, kernel, own, multiplied, setting)
        d_h, d_psi, d_kernels, more = upper_backward(read, d_h_after, own, multiplied, setting)
        below, top = lower_gradients(owed, "bf16"), upper_gradients(more, "bf16")
        return [kept.after, kept.features, after, d_g, d_h, d_psi, d_kernels, *below, *top]

    with torch.no_grad():
        by_address = found()
        described(monkeypatch, tight)
        compare(found(), tuple(by_address), 5e-3)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("share", [16, 32])
def test_mixing_is_whitening(pooled: bool, share: int) -> None:
    torch.manual_seed(0)
    options = EigenOptions(functions=share, heads=2)
    parts = torch.randn(BATCH, 5, 40, 2, share, device=DEVICE) / 10
    parts[..., 0] *= 1e-2
    grams = torch.einsum("bpmhi,bpmhj->bpihj", parts, parts).flatten(3)
    raw_mu = torch.randn(2, share, device=DEVICE, requires_grad=True)
    each = grams.double().sum(1).unflatten(-1, (2, share)).transpose(1, 2).contiguous()
    covariance = each.mean(0, keepdim=True) if pooled else each
    covariance.requires_grad_()
    norm = Whitening(options).to(DEVICE)
    kernel = norm.kernel(nn.functional.softplus(raw_mu), norm.factor(covariance))
    d_kernel = torch.randn(kernel.shape, device=DEVICE)
    d_covariance, d_raw_mu = torch.autograd.grad(kernel, (covariance, raw_mu), d_kernel.double())
    largest = float(kernel.detach().abs().max())

    how = Whitened(white=True, pooled=pooled, ridge=options.ridge)
    totals, failures = torch.empty_like(covariance), raw_mu.new_empty(len(covariance), 2).int()
    with torch.no_grad():
        mixed = mixing_forward(grams, raw_mu, totals, failures, how)
        parts_of_it = torch.stack([0.25 * d_kernel, 0.75 * d_kernel], 1).flatten(0, 1)
        d_gram, ours = mixing_backward(parts_of_it, mixed, raw_mu, BATCH, how)
    samples = BATCH if pooled else 1
    assert torch.allclose(totals / samples, covariance, rtol=1e-12)
    assert not failures.any()
    assert torch.allclose(mixed.kernel, kernel, rtol=1e-6, atol=1e-6 * largest)
    compact = d_covariance.float().transpose(1, 2).flatten(2) / samples
    compare([d_gram, ours], (compact.expand(BATCH, -1, -1), d_raw_mu), 1e-5)


def test_mixing_says_what_it_cannot_factor() -> None:
    how = Whitened(white=True, pooled=True, ridge=1e-7)
    grams = -torch.eye(16, device=DEVICE).repeat(1, 1, 1, 4)
    totals = torch.empty(1, 4, 16, 16, dtype=torch.float64, device=DEVICE)
    failures = torch.zeros(1, 4, dtype=torch.int32, device=DEVICE)
    mixed = mixing_forward(grams, torch.zeros(4, 16, device=DEVICE), totals, failures, how)
    assert (failures > 0).all()
    assert not torch.isfinite(mixed.kernel).any(-1).all()
