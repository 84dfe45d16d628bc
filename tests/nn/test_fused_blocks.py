"""The fused kernels against the modules that define them; run with -m gpu."""

from __future__ import annotations

from typing import Any

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
from ono.nn.fused_form import Form
from ono.nn.fused_launch import Setting, available, operands
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
from ono.nn.lanes import Lane, lanes
from ono.nn.measure import Measure
from ono.nn.mlp import FFN
from ono.nn.orthogonal_attention import Basis, OrthogonalAttention
from ono.nn.recompute import recompute_blocks
from ono.nn.whitening import Whitening, second_moments
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


def shaken(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.5)


def compare(got: list[Tensor], expected: tuple[Tensor, ...], tolerance: float) -> None:
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert ours.shape == theirs.shape
        assert float((ours - theirs).norm() / theirs.norm()) < tolerance, number


@pytest.mark.parametrize("kind", ["uniform", "weights", "padded"])
@pytest.mark.parametrize("sets", [1, 2, HEADS])
def test_lower_block_is_the_nn_block(kind: str, sets: int) -> None:
    torch.manual_seed(0)
    block = NNBlock(EfficientAttention(WIDTH, HEADS), WIDTH, WIDTH).cuda()
    w_q = nn.Linear(WIDTH, sets * SHARE).cuda()
    shaken(block)
    shaken(w_q)
    space, real = measure(kind)
    g = torch.randn(BATCH, POINTS, WIDTH, device="cuda", requires_grad=True)
    d_after = torch.randn_like(g) * real[..., None]
    d_features = torch.randn(BATCH, POINTS, sets * SHARE, device="cuda") * real[..., None]
    d_gram = 10 * torch.randn(BATCH, sets, SHARE, SHARE, device="cuda")
    d_gram = d_gram + d_gram.mT
    parameters = lower_parameters(block, w_q)

    after, _ = block(g, space)
    features = w_q(after)
    gram = second_moments(features, sets, space)
    given = (d_after, d_features, d_gram.double())
    expected = torch.autograd.grad((after, features, gram), (g, *parameters), given)

    setting = Setting(space.weights, SHARE, "bf16x6")
    with torch.no_grad():
        multiplied = operands(lower_weights(block, w_q), "bf16x6")
        kept = lower_forward(g, parameters, multiplied, setting)
        grams = grams_of(kept.features, setting)
        compact = d_gram.transpose(1, 2).flatten(2).contiguous()
        d_g, owed = lower_backward(
            kept, (d_after, d_features, compact), parameters, multiplied, setting
        )
        others = lower_gradients(owed, setting.precision)
    seen = real[..., None] > 0
    for ours, theirs in ((kept.after, after), (kept.features, features)):
        assert torch.allclose(ours * seen, theirs * seen, rtol=1e-4, atol=1e-4)
    total = grams.sum(1).unflatten(-1, (sets, SHARE)).transpose(1, 2)
    assert torch.allclose(total, gram.float(), rtol=1e-4, atol=1e-5)
    compare([d_g, *others], expected, 2e-5)


@pytest.mark.parametrize("kind", ["uniform", "padded"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("own_kernel", [False, True])
@pytest.mark.parametrize("sets", [1, 2, HEADS])
def test_upper_block_is_the_orthogonal_block(
    kind: str, times: int, own_kernel: bool, sets: int
) -> None:
    torch.manual_seed(0)
    attention = OrthogonalAttention(WIDTH, WIDTH, EigenOptions(functions=SHARE, heads=sets))
    block = OrthogonalBlock(attention, FFN(WIDTH, WIDTH), WIDTH, "pre").cuda()
    shaken(block)
    space, real = measure(kind)
    shape = (BATCH, times, POINTS, WIDTH) if times > 1 else (BATCH, POINTS, WIDTH)
    h = torch.randn(shape, device="cuda", requires_grad=True)
    features = torch.randn(BATCH, POINTS, sets * SHARE, device="cuda", requires_grad=True)
    groups = BATCH if own_kernel else 1
    kernel = torch.randn(groups, sets, SHARE, SHARE, device="cuda", dtype=torch.float64)
    kernel.requires_grad_()
    seen = real[:, None, :, None] if times > 1 else real[..., None]
    d_after = torch.randn_like(h) * seen
    parameters = upper_parameters(block)

    mixing = block_diagonal(kernel if own_kernel else kernel[0])
    after, _ = block(Basis(features, mixing, kernel), h, space)
    expected = torch.autograd.grad(after, (h, features, kernel, *parameters), d_after)

    setting = Setting(space.weights, SHARE, "bf16x6")
    with torch.no_grad():
        multiplied = operands(upper_weights(block), "bf16x6")
        kept, ours = upper_forward(h, features, kernel, parameters, multiplied, setting)
        *found, d_kernels, owed = upper_backward(kept, d_after, parameters, multiplied, setting)
        d_kernel = d_kernels.unflatten(0, (len(kernel), -1)).sum(1)
        others = upper_gradients(owed, setting.precision)
    assert torch.allclose(ours * seen, after * seen, rtol=1e-4, atol=1e-4)
    compare([*found, d_kernel, *others], expected, 2e-5)


def described(monkeypatch: pytest.MonkeyPatch, tight: bool) -> None:
    """Let kernels be given descriptors however few programs there are."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs a GPU that copies tiles by itself")

    def of(programs: int, points: int, width: int, precision: str, device: object) -> Form:
        return Form(points, precision == "bf16", tight and precision == "bf16")

    monkeypatch.setattr(Form, "of", of)


@pytest.mark.parametrize("kind", ["uniform", "padded"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("sets", [1, HEADS])
@pytest.mark.parametrize("tight", [False, True])
def test_blocks_are_the_same_by_address_and_by_descriptor(
    kind: str, times: int, sets: int, tight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    block = NNBlock(EfficientAttention(WIDTH, HEADS), WIDTH, WIDTH).cuda()
    attention = OrthogonalAttention(WIDTH, WIDTH, EigenOptions(functions=SHARE, heads=sets))
    above = OrthogonalBlock(attention, FFN(WIDTH, WIDTH), WIDTH, "pre").cuda()
    w_q = nn.Linear(WIDTH, sets * SHARE).cuda()
    for module in (block, above, w_q):
        shaken(module)
    space, _ = measure(kind)
    g, d_g_after = (torch.randn(BATCH, POINTS, WIDTH, device="cuda") for _ in range(2))
    h, d_h_after = (torch.randn(BATCH, times, POINTS, WIDTH, device="cuda") for _ in range(2))
    d_features = torch.randn(BATCH, POINTS, sets * SHARE, device="cuda")
    d_gram = torch.randn(BATCH, sets, SHARE, SHARE, device="cuda")
    d_gram = (d_gram + d_gram.mT).transpose(1, 2).flatten(2).contiguous()
    kernel = torch.randn(BATCH, sets, SHARE, SHARE, device="cuda", dtype=torch.float64)
    setting = Setting(space.weights, SHARE, "bf16")

    def found() -> list[Tensor]:
        own, multiplied = lower_parameters(block, w_q), operands(lower_weights(block, w_q), "bf16")
        kept = lower_forward(g, own, multiplied, setting)
        given = (d_g_after, d_features, d_gram)
        d_g, owed = lower_backward(kept, given, own, multiplied, setting)
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
    parts = torch.randn(BATCH, 5, 40, 2, share, device="cuda") / 10
    parts[..., 0] *= 1e-2
    grams = torch.einsum("bpmhi,bpmhj->bpihj", parts, parts).flatten(3)
    raw_mu = torch.randn(2, share, device="cuda", requires_grad=True)
    each = grams.double().sum(1).unflatten(-1, (2, share)).transpose(1, 2).contiguous()
    covariance = each.mean(0, keepdim=True) if pooled else each
    covariance.requires_grad_()
    norm = Whitening(options).cuda()
    kernel = norm.kernel(nn.functional.softplus(raw_mu), norm.factor(covariance))
    d_kernel = torch.randn(kernel.shape, device="cuda")
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
    grams = -torch.eye(16, device="cuda").repeat(1, 1, 1, 4)
    totals = torch.empty(1, 4, 16, 16, dtype=torch.float64, device="cuda")
    failures = torch.zeros(1, 4, dtype=torch.int32, device="cuda")
    mixed = mixing_forward(grams, torch.zeros(4, 16, device="cuda"), totals, failures, how)
    assert (failures > 0).all()
    assert not torch.isfinite(mixed.kernel).any(-1).all()


@pytest.mark.parametrize(
    "eigen",
    [
        {},
        {"covariance": "sample"},
        {"norm": "none"},
        {"functions": 32, "heads": 4},
        {"heads": 1},
        {"heads": 2, "covariance": "sample"},
    ],
    ids=["batch", "sample", "none", "32", "one set", "two sets"],
)
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 1e-4), ("tf32", 1e-2), ("bf16", 8e-2)]
)
def test_a_fused_operator_is_the_plain_one(
    eigen: dict[str, Any], precision: str, tolerance: float
) -> None:
    config = ONOConfig.model_validate(
        {"layers": 3, "eigen": eigen, "lower": {"heads": 128 // eigen.get("functions", 16)}}
    )
    compare_operators(config, precision, tolerance)


@pytest.mark.parametrize(
    ("width", "functions", "sets"),
    [(128, 16, 4), (128, 32, 1), (128, 32, 2), (64, 16, 1), (64, 16, 4), (64, 32, 1), (64, 32, 2)],
)
@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 1e-2), ("bf16", 8e-2)])
def test_so_are_operators_of_other_sizes(
    width: int, functions: int, sets: int, precision: str, tolerance: float
) -> None:
    """Compilers get some of them wrong: every size has programs of its own."""
    config = ONOConfig.model_validate(
        {
            "width": width,
            "layers": 2,
            "eigen": {"functions": functions, "heads": sets},
            "lower": {"heads": width // functions},
        }
    )
    compare_operators(config, precision, tolerance)


@pytest.mark.parametrize(
    ("width", "functions", "sets"), [(128, 16, 1), (128, 16, 8), (128, 32, 2), (64, 16, 4)]
)
@pytest.mark.parametrize("tight", [False, True])
def test_so_are_operators_given_descriptors(
    width: int, functions: int, sets: int, tight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    described(monkeypatch, tight)
    test_so_are_operators_of_other_sizes(width, functions, sets, "bf16", 8e-2)


@pytest.mark.parametrize(
    ("changes", "inputs", "outputs"),
    [
        ({"encoder": "shared"}, 1, 1),
        ({"head": "ffn"}, 1, 2),
        ({}, 50, 1),
        ({}, 1, 9),
    ],
    ids=["one encoder", "other head", "many inputs", "many outputs"],
)
def test_so_are_operators_with_other_ends(
    changes: dict[str, Any], inputs: int, outputs: int
) -> None:
    """Ends that have no kernels of their own are torch's."""
    config = ONOConfig.model_validate({"layers": 2, **changes})
    compare_operators(config, "bf16", 8e-2, inputs=inputs, outputs=outputs)


def compare_operators(
    config: ONOConfig, precision: str, tolerance: float, *, inputs: int = 1, outputs: int = 1
) -> None:
    """Hold both against float64: fused kernels may be twice as far from it as the plain ones."""
    torch.manual_seed(0)
    problem = Problem(dim=2, in_channels=inputs, out_channels=outputs)
    model = ONO(config, problem).cuda()
    domain = Domain.grid((23, 29), batch=3).to("cuda")
    values = torch.randn(3, 23 * 29, inputs, device="cuda")
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


@pytest.mark.parametrize("slow", [None, 0, 1, 2, 3, 4])
def test_flows_side_by_side_give_the_same_bits(
    slow: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one lane gives away too early, or reads too late, would show as other numbers.

    One of the lanes is held up now and then, so that the others run ahead of it.
    """
    torch.manual_seed(0)
    model = ONO(ONOConfig(), Problem(dim=2, in_channels=1, out_channels=1)).cuda()
    domain = Domain.grid((31, 31), batch=8).to("cuda")
    values = torch.randn(8, 31 * 31, 1, device="cuda")

    def step(streams: bool) -> list[Tensor]:
        fuse_blocks(model, streams=streams)
        loss = model(domain, values).square().mean()
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    alone = step(streams=False)
    unhurried = Lane.behind

    def behind(self: Lane, other: Lane) -> None:
        unhurried(self, other)
        number = [*streams, self.stream].index(self.stream)
        if self.stream is not None and number == slow:
            with torch.cuda.stream(self.stream):
                torch.cuda._sleep(300_000)

    with lanes(4, torch.device("cuda"), beside=True) as found:
        streams = [lane.stream for lane in found]
    with lanes(2, torch.device("cuda"), beside=True) as found:
        streams.append(found[1].stream)
    if slow is not None:
        monkeypatch.setattr(Lane, "behind", behind)
    for _ in range(5 if slow is not None else 20):
        ours = step(streams=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(ours, alone, strict=True))


def test_an_error_in_a_recording_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """All lanes come together again: a recording can end, and the next one be begun."""
    model = ONO(ONOConfig(), Problem(dim=2, in_channels=1, out_channels=1)).cuda()
    fuse_blocks(model)
    domain = Domain.grid((31, 31), batch=8).to("cuda")
    values = torch.randn(8, 31 * 31, 1, device="cuda")

    def step() -> Tensor:
        loss: Tensor = model(domain, values).square().mean()
        torch.autograd.grad(loss, list(model.parameters()))
        return loss

    with torch.cuda.stream(torch.cuda.Stream()):
        expected = step()
    torch.cuda.synchronize()
    name = "ono.models.ono_flows.lower_backward"
    left = 4

    def fails(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            raise torch.OutOfMemoryError("full")
        return lower_backward(*args)

    monkeypatch.setattr(name, fails)
    with (
        pytest.raises(torch.OutOfMemoryError, match="full"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        step()
    monkeypatch.setattr(name, lower_backward)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    graph.replay()
    assert torch.equal(recorded, expected)
