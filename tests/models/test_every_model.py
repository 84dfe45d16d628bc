"""What every registered operator must do: learn, flow, save, agree, refuse.

A refusal is as much a promise as a result: the table says which cases a model refuses, and it
must refuse exactly those.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_cases import CASES, POINTS, Case, grid
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import InputError, ShapeError, UnsupportedDomain
from ono.evaluate.calibrate import calibrate
from ono.models.registry import MODELS, build

GOLDEN = Path(__file__).parents[1] / "golden"
ENOUGH = 0.15
"""The error over that of the best constant at which four samples count as learned."""


@dataclass(frozen=True)
class Small:
    """Options that make a model small, what it refuses, and how fast it may learn."""

    options: dict[str, Any]
    refuses: frozenset[str] = frozenset()
    rate: float = 5e-3
    steps: int = 150
    other_sizes: bool = True


_FOURIER = {"width": 12, "layers": 3, "modes": 4, "head": 16}
_LATENT = {"latent": 12, "deformation": 8}

SMALL: dict[str, Small] = {
    "ono": Small(
        {
            "width": 16,
            "layers": 2,
            "lower": {"heads": 2},
            "eigen": {"heads": 2, "functions": 4},
        },
        rate=1e-2,
    ),
    "fno": Small(_FOURIER, frozenset({"structured", "cloud", "ragged", "timed"})),
    "geo-fno": Small(_FOURIER | _LATENT),
    "u-fno": Small(_FOURIER | _LATENT),
    "f-fno": Small(_FOURIER | _LATENT | {"ffn_factor": 2}),
    "galerkin": Small(
        {
            "width": 16,
            "layers": 2,
            "heads": 2,
            "coarse": 7,
            "spectral_width": 8,
            "modes": 4,
            "dropout": 0.0,
        }
    ),
    "lsm": Small(
        {"width": 8, "scales": 3, "basis": 4, "heads": 4, "modes": 4, "latent": 12, "head": 16}
        | {"deformation": 8}
    ),
    "gnot": Small({"width": 32, "layers": 1, "experts": 2, "mlp_layers": 1, "inner_ratio": 2.0}),
    "deeponet": Small({"width": 32, "layers": 3}, frozenset({"ragged"}), other_sizes=False),
    "transolver": Small(
        {"width": 32, "layers": 2, "heads": 8, "slices": 16, "position": "coords"},
        steps=300,
    ),
}
PAIRS = [(name, case) for name in MODELS for case in CASES]
WORKING = [
    (name, case) for name, case in PAIRS if name in SMALL and case not in SMALL[name].refuses
]
each_working = pytest.mark.parametrize(("name", "kind"), WORKING)
each_model = pytest.mark.parametrize("name", [name for name in MODELS if name in SMALL])


@dataclass(frozen=True)
class Trained:
    """A model that was fitted to a case, calibrated, and what was seen on the way."""

    model: nn.Module
    case: Case
    losses: list[float]
    silent: list[str]


def make(name: str, case: Case, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(MODELS[name].config.model_validate(SMALL[name].options), case.problem)


def answer(model: nn.Module, case: Case) -> Tensor:
    output: Tensor = model(case.domain, case.values, time=case.time)
    mask = case.domain.mask
    return output if mask is None else output * mask[..., None]


def error(output: Tensor, case: Case) -> Tensor:
    """Return the error over that of the best constant."""
    mask = case.domain.mask
    spread = case.target - case.target.flatten(0, -2).mean(0)
    spread = spread if mask is None else spread * mask[..., None]
    ratio: Tensor = (output - case.target).norm() / spread.norm()
    return ratio


def fit(name: str, case: Case, model: nn.Module, steps: int) -> Trained:
    optimiser = torch.optim.Adam(model.parameters(), lr=SMALL[name].rate, betas=(0.9, 0.95))
    decay = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, 2 * (1 - step / SMALL[name].steps))
    )
    losses: list[float] = []
    silent = {key for key, _ in model.named_parameters()}
    model.train()
    while len(losses) < steps and not (losses and losses[-1] < ENOUGH):
        loss = error(answer(model, case), case)
        optimiser.zero_grad()
        loss.backward()
        if len(losses) in (0, 1, 5):  # some layers start at zero and hide those before them
            grads = {key: p.grad for key, p in model.named_parameters()}
            silent -= {key for key, grad in grads.items() if grad is not None and grad.any()}
        optimiser.step()
        decay.step()
        losses.append(float(loss.detach()))
    calibrate(model, [(case.domain, case.values, case.time)])
    return Trained(model.eval(), case, losses, sorted(silent))


@functools.cache
def trained(name: str, kind: str) -> Trained:
    case = CASES[kind]()
    # Padding is tested by what it must not change; learning on a ragged cloud adds nothing.
    steps = 10 if kind == "ragged" else SMALL[name].steps
    return fit(name, case, make(name, case), steps)


@functools.cache
def wide(name: str, kind: str) -> tuple[nn.Module, Case]:
    """Return the trained model in float64, with statistics of its own."""
    found = trained(name, kind)
    model, case = make(name, found.case).double(), found.case.double()
    model.load_state_dict(found.model.state_dict())
    calibrate(model, [(case.domain, case.values, case.time)])
    return model.eval(), case


def test_every_registered_model_is_tested() -> None:
    assert set(MODELS) <= set(SMALL), "give the new model small options in SMALL"


@pytest.mark.parametrize(("name", "kind"), sorted(set(PAIRS) - set(WORKING)))
def test_refusals_name_the_model_and_a_way_out(name: str, kind: str) -> None:
    with pytest.raises(UnsupportedDomain, match=f"^{name} needs|^{name} reads") as refusal:
        make(name, CASES[kind]())
    assert "; use " in str(refusal.value)


@pytest.mark.parametrize(("name", "kind"), [pair for pair in WORKING if pair[1] != "ragged"])
def test_four_samples_can_be_learned(name: str, kind: str) -> None:
    assert trained(name, kind).losses[-1] < ENOUGH


@each_working
def test_gradients_reach_every_parameter(name: str, kind: str) -> None:
    assert trained(name, kind).silent == []


@each_working
def test_samples_do_not_see_padding_or_batch_mates(name: str, kind: str) -> None:
    model, case = wide(name, kind)
    together = answer(model, case)
    for index in range(len(case.target)):
        alone = case.sample(index)
        mine = together[index][..., : alone.domain.points, :]
        torch.testing.assert_close(mine[None], answer(model, alone), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", [name for name, kind in WORKING if kind == "ragged"])
def test_what_lies_in_the_padding_changes_no_gradient(name: str) -> None:
    case = CASES["ragged"]().double()
    hidden = ~case.domain.mask[..., None]  # type: ignore[index]
    rubbish = replace(
        case,
        domain=replace(case.domain, coords=case.domain.coords.masked_fill(hidden, 0.7)),
        values=case.values.masked_fill(hidden, 1e2),
    )
    model, gradients = make(name, case).double().train(), []
    parameters = [p for p in model.parameters() if p.requires_grad]
    for one in (case, rubbish):
        loss = error(answer(model, one), one)
        gradients.append(torch.autograd.grad(loss, parameters, materialize_grads=True))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@each_working
def test_saved_weights_give_the_same_bits(name: str, kind: str, tmp_path: Path) -> None:
    found = trained(name, kind)
    state = {key: t.contiguous().clone() for key, t in found.model.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    twin = make(name, found.case, seed=1)
    twin.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(answer(twin.eval(), found.case), answer(found.model, found.case))


@each_working
def test_queries_at_the_input_points_are_the_output(name: str, kind: str) -> None:
    model, case = wide(name, kind)
    here = model(case.domain, case.values, time=case.time)
    query = replace(case.domain, shape=None)
    there = model(case.domain, case.values, query=query, time=case.time)
    mask = case.domain.mask
    if mask is not None:
        here, there = here * mask[..., None], there * mask[..., None]
    torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)
    elsewhere = Domain(torch.rand(4, 7, 2, dtype=torch.float64))
    output = model(case.domain, case.values, query=elsewhere, time=case.time)
    assert output.shape == (*case.target.shape[:-2], 7, case.target.shape[-1])
    assert torch.isfinite(output).all()


@pytest.mark.parametrize("name", [name for name, kind in WORKING if kind == "timed"])
def test_one_time_is_a_slice_of_many_or_is_refused(name: str) -> None:
    model, case = wide(name, "timed")
    assert case.time is not None
    together = answer(model, case)
    try:
        one = model(case.domain, case.values, time=case.time[:, 1])
    except InputError as refusal:
        assert "time" in str(refusal)  # noqa: PT017
    else:
        torch.testing.assert_close(one, together[:, 1], rtol=1e-7, atol=1e-9)


@each_model
@pytest.mark.parametrize("shape", [(17, 9), (23, 24)])
def test_other_grid_sizes_work_or_are_refused(name: str, shape: tuple[int, int]) -> None:
    model, other = trained(name, "grid").model, grid(shape)
    if SMALL[name].other_sizes:
        assert torch.isfinite(answer(model, other)).all()
    else:
        with pytest.raises(ShapeError, match=f"{POINTS} .*got {shape[0] * shape[1]}"):
            answer(model, other)


@each_model
def test_wrong_shapes_are_named(name: str) -> None:
    model, case = trained(name, "grid").model, CASES["grid"]()
    domain, values = case.domain, case.values
    with pytest.raises(ShapeError, match=rf"^{name} expected .*coordinates come from the domain"):
        model(domain, torch.cat((domain.coords, values), -1))
    with pytest.raises(ShapeError, match=f"{name} was built for 2 coordinates, got 3"):
        model(Domain(torch.rand(4, POINTS, 3), domain.shape), values)
    with pytest.raises(ShapeError, match=f"{name} was built with timed=False"):
        model(domain, values, time=torch.zeros(4))


@each_model
def test_losses_are_golden(name: str) -> None:
    """Compare ten steps in float64, where the last bits of a machine do not grow.

    With ONO_WRITE_GOLDEN set the file is written anew; a change needs a line in the change log.
    """
    case = CASES["grid"]().double()
    losses = fit(name, case, make(name, case).double(), steps=10).losses
    file = GOLDEN / f"{name}_10_steps.txt"
    if os.environ.get("ONO_WRITE_GOLDEN"):
        file.write_text("".join(f"{loss:.9g}\n" for loss in losses), encoding="utf-8")
    golden = [float(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert losses == pytest.approx(golden, rel=1e-4)


def check_compiled() -> None:
    """Compare every model with its compiled self; runs in a process without the shape hook."""
    for name, kind in WORKING:
        torch.compiler.reset()
        case = CASES[kind]()
        model = make(name, case)
        parameters = [p for p in model.parameters() if p.requires_grad]
        results = []
        # One after the other: running statistics may change in place between forward and backward.
        for form in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
            output = answer(form, case)  # type: ignore[arg-type]
            loss = error(output, case)
            results.append((output, torch.autograd.grad(loss, parameters, materialize_grads=True)))
        (eager, theirs), (compiled, ours) = results
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_compiled_models_agree_with_eager() -> None:
    here = Path(__file__).parent
    environment = os.environ | {"ONO_TEST_COMPILE": "1", "PYTHONPATH": f"{here}:{here.parent}"}
    script = "from test_every_model import check_compiled; check_compiled()"
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


@pytest.mark.parametrize(
    ("name", "kind"), [pair for pair in WORKING if pair[1] in ("structured", "cloud")]
)
def test_bfloat16_rounds_neither_places_nor_the_output(name: str, kind: str) -> None:
    """All places here are one place in bfloat16, whose numbers are 1/256 apart below one."""
    found = trained(name, kind)
    outputs = []
    for seed in range(2):
        draw = torch.Generator().manual_seed(seed)
        coords = 0.8984 + 0.0015 * torch.rand(found.case.domain.coords.shape, generator=draw)
        assert len(coords.bfloat16().unique()) == 1
        case = replace(found.case, domain=replace(found.case.domain, coords=coords))
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            outputs.append(answer(found.model, case))
    assert outputs[0].dtype == torch.float32
    assert not torch.equal(*outputs)
    assert not torch.equal(outputs[0], outputs[0].bfloat16().float())
