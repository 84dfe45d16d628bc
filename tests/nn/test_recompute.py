from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import Any, Literal

import pytest
import small_cases
import torch
from torch import Tensor, nn

from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.nn.eigen_options import EigenOptions
from ono.nn.recompute import recompute_blocks


def model(case: small_cases.Case, **eigen: Any) -> ONO:
    torch.manual_seed(0)
    options = EigenOptions(functions=4, heads=2, **eigen)
    return ONO(ONOConfig(width=16, layers=3, eigen=options), case.problem).double().train()


def learn(operator: ONO, case: small_cases.Case) -> None:
    out = operator(case.domain, case.values, time=case.time)
    (out - case.target).square().mean().backward()


@pytest.mark.parametrize("kind", ["grid", "ragged", "timed"])
@pytest.mark.parametrize("covariance", ["batch", "ema", "sample"])
def test_gradients_and_statistics_are_the_same(
    kind: str, covariance: Literal["batch", "ema", "sample"]
) -> None:
    case = small_cases.CASES[kind]().double()
    plain = model(case, covariance=covariance)
    light = copy.deepcopy(plain)
    assert recompute_blocks(light) > 0
    for operator in (plain, light):
        learn(operator, case)
    for (name, ours), theirs in zip(light.named_parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None and theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
    # Sums of a batch that were added twice would show here, and failures counted twice.
    for (name, mine), yours in zip(light.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(mine, yours), name


def saved_bytes(operator: ONO, case: small_cases.Case) -> int:
    """Return what a forward pass keeps for backward; tensors that share memory count once."""
    kept: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    def inputs(module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note what a block that forgets holds on to, which no hook for saved tensors sees."""
        for arg in args:
            kept.extend(
                x for x in (arg if isinstance(arg, tuple) else (arg,)) if torch.is_tensor(x)
            )

    handles = [b.register_forward_pre_hook(inputs) for b in [*operator.lower, *operator.upper]]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        operator(case.domain, case.values)
    for handle in handles:
        handle.remove()
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}
    for known in [*operator.parameters(), *operator.buffers()]:
        storages.pop(known.untyped_storage().data_ptr(), None)
    return sum(storages.values())


def test_less_is_kept() -> None:
    case = small_cases.grid((40, 40)).double()
    plain = model(case)
    light = copy.deepcopy(plain)
    recompute_blocks(light)
    ours, theirs = saved_bytes(light, case), saved_bytes(plain, case)
    assert ours < theirs / 3, (ours, theirs)


def test_it_can_be_switched_off() -> None:
    case = small_cases.grid()
    operator = model(case)
    recompute_blocks(operator)
    assert all(block.recompute for block in operator.lower)
    recompute_blocks(operator, False)
    assert not any(block.recompute for block in operator.lower)


COMPILED = """
import copy
import torch
import small_cases
from ono.models.ono import ONO, ONOConfig
from ono.nn.recompute import recompute_blocks

case = small_cases.grid().double()
torch.manual_seed(0)
model = ONO(ONOConfig(width=16, layers=2), case.problem).double().train()
light = copy.deepcopy(model)
recompute_blocks(light)
for call in (model, torch.compile(light, fullgraph=True, dynamic=False, backend="aot_eager")):
    (call(case.domain, case.values) - case.target).square().mean().backward()
pairs = zip([*model.parameters()], [*light.parameters()], strict=True)
assert all(torch.allclose(p.grad, q.grad, rtol=1e-10, atol=1e-12) for p, q in pairs)
pairs = zip([*model.buffers()], [*light.buffers()], strict=True)
assert all(torch.allclose(p, q) for p, q in pairs)
"""


@pytest.mark.slow
def test_compiled_blocks_are_computed_again_too() -> None:
    environment = os.environ | {"ONO_TEST_COMPILE": "1", "PYTHONPATH": "tests"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
