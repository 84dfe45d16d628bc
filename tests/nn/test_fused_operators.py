"""Operators with fused blocks against the plain ones; run with -m gpu."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_cases import described, distances
from torch import Tensor

from ono.domain import Domain
from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.models.ono_fused import fuse_blocks, fuse_landmarks
from ono.nn.fused_launch import available
from ono.nn.fused_lower import lower_backward
from ono.nn.lanes import Lane, lanes
from ono.nn.recompute import recompute_blocks
from ono.problem import Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available(), reason="needs a CUDA device and Triton"),
]


@pytest.mark.parametrize(
    "eigen",
    [
        {},
        {"covariance": "sample"},
        {"norm": "none"},
        {"norm": "bn"},
        {"norm": "ln"},
        {"functions": 32, "heads": 4},
        {"heads": 1},
        {"heads": 2, "covariance": "sample"},
    ],
    ids=["batch", "sample", "none", "bn", "ln", "32", "one set", "two sets"],
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


@pytest.mark.parametrize("attention", ["linear", "galerkin", "softmax", "nystrom"])
@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 1e-2), ("bf16", 8e-2)])
def test_so_are_operators_with_an_attention_of_torch(
    attention: str, precision: str, tolerance: float
) -> None:
    config = ONOConfig.model_validate({"layers": 2, "lower": {"attention": attention, "heads": 8}})
    compare_operators(config, precision, tolerance)


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
        fuse_landmarks(twin, fused)
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
    assert max(distances(fused_slopes, slopes)) < tolerance


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
@pytest.mark.parametrize("attention", ["efficient", "galerkin"])
def test_flows_side_by_side_give_the_same_bits(
    slow: int | None, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one lane gives away too early, or reads too late, would show as other numbers.

    One of the lanes is held up now and then, so that the others run ahead of it.
    """
    torch.manual_seed(0)
    config = ONOConfig.model_validate({"lower": {"attention": attention, "heads": 8}})
    model = ONO(config, Problem(dim=2, in_channels=1, out_channels=1)).cuda()
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
