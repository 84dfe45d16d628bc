from __future__ import annotations

from typing import Any

import pytest
import small_cases
import torch
from pydantic import ValidationError

from ono.evaluate.calibrate import calibrate
from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.models.ono_stream import stream
from ono.nn.blocks import NNBlock, Unchanged

LIGHT = {"heads": 2, "width": 8, "layers": 2}


def build(case: small_cases.Case, **options: Any) -> ONO:
    torch.manual_seed(0)
    eigen = {"functions": 4, "heads": 2}
    content = {"width": 16, "layers": 3, "eigen": eigen, "lower": LIGHT, **options}
    return ONO(ONOConfig.model_validate(content), case.problem)


def test_blocks_and_widths_are_as_asked() -> None:
    model = build(small_cases.grid())
    assert [type(block) for block in model.lower] == [NNBlock, Unchanged, NNBlock]
    assert {p.shape[-1] for name, p in model.named_parameters() if name.endswith("w_q.weight")} == {
        8
    }
    whole = build(small_cases.grid(), lower={"heads": 2})
    count, full = (sum(p.numel() for p in m.lower.parameters()) for m in (model, whole))
    assert count < full / 4
    names = {name for name, _ in whole.upper.named_parameters()}
    assert {name for name, _ in model.upper.named_parameters()} == names


@pytest.mark.parametrize("kind", list(small_cases.CASES))
@pytest.mark.parametrize(
    "options",
    [{}, {"encoder": "shared", "block": "post"}, {"query": "cross"}, {"time": {"to": "g"}}],
    ids=["default", "paper", "cross", "time-to-g"],
)
def test_every_problem_is_learned_from(kind: str, options: dict[str, Any]) -> None:
    case = small_cases.CASES[kind]()
    model = build(case, **options).train()
    out = model(case.domain, case.values, time=case.time)
    assert out.shape == case.target.shape
    out.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("kind", ["grid", "timed"])
def test_queries_and_chunks_agree_with_the_plain_call(kind: str) -> None:
    case = small_cases.CASES[kind]().double()
    model = build(case).double().train()
    calibrate(model, [(case.domain, case.values, case.time)])
    model.eval()
    with torch.no_grad():
        whole = model(case.domain, case.values, time=case.time)
        asked = model(case.domain, case.values, time=case.time, query=case.domain)
    torch.testing.assert_close(asked, whole, rtol=1e-6, atol=1e-6)  # inputs are interpolated
    parts = stream(model, case.domain, case.values, time=case.time, chunk=7)
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-9)


def test_a_layer_without_a_block_has_eigenfunctions_of_its_own() -> None:
    case = small_cases.grid().double()
    model = build(case).double().train()
    first, second = (
        model.eigenfunctions(case.domain, case.values, layer=layer) for layer in (0, 1)
    )
    assert not torch.allclose(first, second)


def test_more_lower_blocks_than_layers_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"lower\.layers must not exceed layers, got 4 and 3"):
        ONOConfig.model_validate({"layers": 3, "lower": {"layers": 4}})
