from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import small_cases
import torch

from ono.domain import Domain
from ono.errors import NotCalibrated, UnsupportedDomain
from ono.evaluate.calibrate import calibrate
from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.models.ono_stream import can_stream, stream
from ono.problem import Problem


def calibrated(case: small_cases.Case, **options: Any) -> ONO:
    torch.manual_seed(0)
    eigen = {"functions": 4, "heads": 2, **options.pop("eigen", {})}
    content = {"width": 16, "layers": 3, "eigen": eigen, "lower": {"heads": 2}, **options}
    model = ONO(ONOConfig.model_validate(content), case.problem).train()
    if case.values.dtype == torch.float64:
        model.double()
    calibrate(model, [(case.domain, case.values, case.time)])
    return model.eval()


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "again"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("grid", {}),
        ("grid", {"lower": {"attention": "linear", "heads": 2}}),
        ("grid", {"lower": {"attention": "galerkin", "heads": 2}, "block": "post"}),
        ("grid", {"eigen": {"covariance": "sample"}}),
        ("grid", {"eigen": {"norm": "bn", "measure": "sum"}}),
        ("grid", {"eigen": {"norm": "ln", "measure": "mean"}, "position": "mesh"}),
        ("structured", {"encoder": "shared", "position": "index"}),
        ("cloud", {}),
        ("ragged", {}),
        ("ragged", {"eigen": {"measure": "sum", "covariance": "sample"}}),
        ("timed", {}),
        ("timed", {"eigen": {"covariance": "sample"}}),
        ("timed", {"time": {"to": "g"}}),
    ],
)
def test_chunks_give_what_all_points_at_once_give(
    kind: str, options: dict[str, Any], keep: bool
) -> None:
    case = small_cases.CASES[kind]().double()
    model = calibrated(case, **options)
    with torch.no_grad():
        whole = model(case.domain, case.values, time=case.time)
    for chunk in (7, 1000):
        parts = stream(model, case.domain, case.values, time=case.time, chunk=chunk, keep=keep)
        torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-10)


def test_float32_chunks_agree_to_rounding() -> None:
    case = small_cases.grid((60, 50))
    model = calibrated(case)
    with torch.no_grad():
        whole = model(case.domain, case.values)
    parts = stream(model, case.domain, case.values, chunk=256)
    assert float((parts - whole).norm() / whole.norm()) < 1e-5


def test_large_keys_do_not_overflow() -> None:
    case = small_cases.cloud()
    model = calibrated(case)
    with torch.no_grad():
        for block, _ in model._blocks():
            block.attention.qkv.weight[16:32] *= 1e4
        whole = model(case.domain, case.values)
    parts = stream(model, case.domain, case.values, chunk=8)
    assert torch.isfinite(parts).all()
    torch.testing.assert_close(parts, whole, rtol=1e-3, atol=1e-3)


def test_padding_at_the_end_fills_whole_chunks() -> None:
    case = small_cases.ragged().double()
    hidden = torch.arange(40) >= torch.tensor([40, 9, 9, 9])[:, None]
    domain = replace(case.domain, mask=case.domain.mask & ~hidden)  # type: ignore[operator]
    model = calibrated(case)
    with torch.no_grad():
        whole = model(domain, case.values)
    parts = stream(model, domain, case.values, chunk=10)
    real = domain.mask
    assert real is not None
    torch.testing.assert_close(parts[real], whole[real], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("attention", ["softmax", "nystrom"])
def test_attention_that_needs_all_points_is_refused(attention: str) -> None:
    case = small_cases.grid()
    model = calibrated(case, lower={"attention": attention, "heads": 2, "landmarks": 8})
    assert not can_stream(model)
    with pytest.raises(UnsupportedDomain, match="cannot take them in chunks"):
        stream(model, case.domain, case.values)


def test_cross_queries_are_refused() -> None:
    case = small_cases.grid()
    model = calibrated(case, query="cross")
    assert not can_stream(model)
    with pytest.raises(UnsupportedDomain, match=r"model\.query=linear"):
        stream(model, case.domain, case.values)


def test_a_model_in_training_is_refused() -> None:
    case = small_cases.grid()
    model = calibrated(case).train()
    with pytest.raises(NotCalibrated, match=r"call model\.eval\(\) first"):
        stream(model, case.domain, case.values)


def test_only_ono_streams() -> None:
    case = small_cases.grid()
    assert can_stream(calibrated(case))
    assert not can_stream(torch.nn.Linear(2, 2))


def test_memory_is_that_of_a_chunk() -> None:
    """No tensor larger than a chunk of the flows is ever made, besides inputs and outputs."""
    points, chunk = 20_000, 500
    model = ONO(ONOConfig(width=32, layers=2), Problem(dim=2, in_channels=1, out_channels=1)).eval()
    domain, values = Domain(torch.rand(1, points, 2)), torch.rand(1, points, 1)
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.ndim == 3:
                largest = max(largest, out.numel())
            return out

    with Watch():
        stream(model, domain, values, chunk=chunk)
    assert 0 < largest <= 128 * chunk  # the features of a chunk


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_flows_may_stay_on_the_host() -> None:
    case = small_cases.grid((60, 50))
    model = calibrated(case).cuda()
    with torch.no_grad():
        whole = model(case.domain.to("cuda"), case.values.cuda()).cpu()
    parts = stream(model, case.domain, case.values, chunk=256)
    assert not parts.is_cuda
    assert float((parts - whole).norm() / whole.norm()) < 1e-5
