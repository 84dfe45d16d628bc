"""What makes ONO an operator: invariances, presets, calibration, queries."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from ono.domain import Domain
from ono.errors import NotCalibrated, ShapeError, UnsupportedDomain
from ono.evaluate.calibrate import calibrate
from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.nn.whitening import orthonormality_defect
from ono.problem import Problem

ATTENTIONS = ["efficient", "linear", "galerkin", "softmax", "nystrom"]


def build(seed: int = 0, *, timed: bool = False, **options: Any) -> ONO:
    start = {"width": 16, "layers": 2, "lower": {"heads": 2}, "eigen": {"heads": 2, "functions": 4}}
    lower = {"heads": 2, "landmarks": 8, **options.pop("lower", {})}
    eigen = {"heads": 2, "functions": 4, **options.pop("eigen", {})}
    config = ONOConfig.model_validate({**start, **options, "lower": lower, "eigen": eigen})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ONO(config, Problem(dim=2, in_channels=1, out_channels=2, timed=timed)).double()
        for parameter in model.parameters():  # leave the small start so that layers matter
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def cloud(seed: int = 0, batch: int = 3, points: int = 40) -> tuple[Domain, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    coords = torch.rand(batch, points, 2, generator=generator, dtype=torch.float64)
    return Domain(coords), torch.randn(batch, points, 1, generator=generator, dtype=torch.float64)


def calibrated(model: ONO, domain: Domain, values: Tensor) -> ONO:
    calibrate(model, [(domain, values)])
    return model.eval()


# Parameters of the released models, from their published settings.
@pytest.mark.parametrize(
    ("attention", "layers", "k", "ratio", "position", "inputs", "outputs", "timed", "count"),
    [
        ("nystrom", 10, 32, 2, "coords", 1, 1, False, 2_027_985),
        ("efficient", 8, 16, 1, "coords", 10, 1, False, 1_112_705),
        ("nystrom", 8, 8, 1, "index", 2, 1, False, 1_104_193),
        ("efficient", 8, 8, 1, "index", 1, 4, True, 1_135_236),
        ("nystrom", 6, 8, 1, "coords", 2, 1, False, 836_881),
        ("efficient", 8, 16, 1, "coords", 1, 1, False, 1_110_401),
        ("nystrom", 30, 8, 4, "index", 2, 1, False, 9_870_033),
    ],
)
def test_paper_preset_has_the_released_parameter_counts(
    attention: str,
    layers: int,
    k: int,
    ratio: float,
    position: str,
    inputs: int,
    outputs: int,
    timed: bool,
    count: int,
) -> None:
    base = ONOConfig.paper().model_dump()
    base["lower"] |= {"attention": attention, "index_convolution": attention == "nystrom"}
    base["eigen"] |= {"functions": k}
    base |= {"layers": layers, "ffn_ratio": ratio, "position": position}
    config = ONOConfig.model_validate(base)
    with torch.device("meta"):
        model = ONO(config, Problem(dim=2, in_channels=inputs, out_channels=outputs, timed=timed))
    assert sum(p.numel() for p in model.parameters()) == count


def test_readings_of_the_paper_differ_where_they_should() -> None:
    released, text = ONOConfig.paper(), ONOConfig.paper("text")
    assert (released.eigen.covariance, text.eigen.covariance) == ("batch", "ema")
    assert (released.eigen.value_projection, text.eigen.value_projection) == (False, True)
    assert (released.lower.attention, text.lower.attention) == ("efficient", "linear")
    assert (released.encoder, released.head, released.eigen.bias) == ("shared", "linear", True)
    assert (text.encoder, text.head, text.eigen.bias) == ("separate", "ffn", False)
    for config in (released, text):
        assert (config.block, config.eigen.measure, config.eigen.heads) == ("post", "sum", 1)


@pytest.mark.parametrize("preset", ["default", "paper", "paper-text"])
@pytest.mark.parametrize("norm", ["ortho", "bn", "ln", "none"])
def test_gradients_reach_every_parameter(
    preset: str, norm: Literal["ortho", "bn", "ln", "none"]
) -> None:
    config = {
        "default": ONOConfig(),
        "paper": ONOConfig.paper(),
        "paper-text": ONOConfig.paper("text"),
    }[preset].model_dump()
    config |= {"width": 16, "layers": 2}
    config["eigen"] |= {"functions": 4, "norm": norm}
    torch.manual_seed(0)
    model = ONO(ONOConfig.model_validate(config), Problem(dim=2, in_channels=1, out_channels=1))
    domain, values = cloud()
    out = model(Domain(domain.coords.float()), values.float())
    out.square().sum().backward()
    silent = [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0
    ]
    if norm == "ortho" and preset != "default":
        # With one head the scale of w_Q cancels against C; nothing else may be without gradient.
        silent = [name for name in silent if "w_q" not in name]
    assert silent == []


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_points_of_a_cloud_without_weight_tell_the_others_nothing(attention: str) -> None:
    domain, values = cloud(points=30)
    model = build(lower={"attention": attention, "landmarks": 6}, eigen={"measure": "weights"})
    weights = torch.rand(domain.batch, 30, dtype=torch.float64)
    weights[:, 4:9] = 0
    some = Domain(domain.coords, weights=weights / weights.sum(1, keepdim=True))
    other = values.clone()
    other[:, 4:9] += 1
    real = weights[0] > 0
    assert torch.allclose(model(some, values)[:, real], model(some, other)[:, real], rtol=1e-9)


@given(seed=st.integers(0, 9999), points=st.integers(8, 40))
@settings(deadline=None, max_examples=10)
@pytest.mark.parametrize("attention", ATTENTIONS[:4])
def test_output_follows_the_order_of_the_points(attention: str, seed: int, points: int) -> None:
    domain, values = cloud(seed, points=points)
    model = calibrated(build(seed, lower={"attention": attention}), domain, values)
    order = torch.randperm(points, generator=torch.Generator().manual_seed(seed))
    expected = model(domain, values)[:, order]
    assert torch.allclose(model(domain.take(order), values[:, order]), expected, rtol=1e-8)


@given(seed=st.integers(0, 9999), real=st.integers(2, 30), padding=st.integers(1, 20))
@settings(deadline=None, max_examples=10)
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_samples_do_not_see_padding_or_batch_mates(
    attention: str, weighted: bool, seed: int, real: int, padding: int
) -> None:
    domain, values = cloud(seed, points=real + padding)
    model = calibrated(build(lower={"attention": attention}), domain, values)
    weights = torch.rand_like(domain.coords[..., 0]) if weighted else None
    mask = torch.ones(3, real + padding, dtype=torch.bool)
    mask[0, real:] = False
    if weights is not None:
        weights = weights * mask
        weights = weights / weights.sum(-1, keepdim=True)
    values = torch.where(mask[..., None], values, 1e3)
    together = model(Domain(domain.coords, None, weights, mask), values)[0, :real]
    own = None if weights is None else weights[:1, :real]
    alone = model(Domain(domain.coords[:1, :real], None, own), values[:1, :real])[0]
    assert torch.allclose(together, alone, rtol=1e-8, atol=1e-10)


def test_points_are_numbered_without_padding() -> None:
    domain, values = cloud()
    model = calibrated(build(position="index"), domain, values)
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[0, 25:] = False
    together = model(Domain(domain.coords, mask=mask), values * mask[..., None])
    alone = model(Domain(domain.coords[:1, :25]), values[:1, :25])
    assert torch.allclose(together[:1, :25], alone, rtol=1e-8, atol=1e-10)
    assert torch.allclose(together[1:], model(domain, values)[1:], rtol=1e-8, atol=1e-10)


def test_samples_whitened_alone_need_no_calibration_and_no_mates() -> None:
    domain, values = cloud()
    model = build(eigen={"covariance": "sample"})
    trained = model.train()(domain, values)
    assert torch.equal(model.eval()(domain, values), trained)
    alone = model.train()(Domain(domain.coords[:1]), values[:1])
    assert torch.allclose(alone, trained[:1], rtol=1e-9)
    query = Domain(domain.coords[:, :7])
    assert torch.allclose(model(domain, values, query=query), trained[:, :7], rtol=1e-8)
    calibrate(model, [])  # nothing to compute, so no data is asked for


def test_ragged_calibration_ignores_padding() -> None:
    domain, values = cloud()
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[0, 25:], mask[1, 30:] = False, False
    padded, looped = build(), build()
    calibrate(padded, [(Domain(domain.coords, mask=mask), values * mask[..., None])])
    samples = [(i, int(mask[i].sum())) for i in range(3)]
    calibrate(
        looped,
        [(Domain(domain.coords[i : i + 1, :n]), values[i : i + 1, :n]) for i, n in samples],
    )
    for a, b in zip(padded.orthogonal_attentions(), looped.orthogonal_attentions(), strict=True):
        assert torch.allclose(a.folded, b.folded, rtol=1e-8)


@pytest.mark.parametrize("attention", ATTENTIONS[:4])
def test_duplicating_every_point_changes_nothing(attention: str) -> None:
    domain, values = cloud()
    model = calibrated(build(lower={"attention": attention}), domain, values)
    twice = Domain(torch.cat((domain.coords, domain.coords), 1))
    out = model(twice, torch.cat((values, values), 1))[:, :40]
    assert torch.allclose(out, model(domain, values), rtol=1e-8)


def test_weights_of_a_refined_region_restore_the_integral() -> None:
    """Twice the points on one half with half the weight each is the same function."""
    domain, values = cloud()
    model = calibrated(build(), domain, values)
    weights = torch.full((3, 40), 1 / 40, dtype=torch.float64)
    repeated = torch.cat((torch.arange(40), torch.arange(20)))
    halved = torch.cat((weights[:, :20] / 2, weights[:, 20:], weights[:, :20] / 2), 1)
    refined = Domain(domain.coords[:, repeated], weights=halved)
    out = model(refined, values[:, repeated])[:, :40]
    assert torch.allclose(out, model(domain, values), rtol=1e-8)


def test_refinement_converges_under_the_mean_measure() -> None:
    def field(x: Tensor) -> Tensor:
        return torch.sin(3 * x[..., :1]) * torch.cos(2 * x[..., 1:])

    def on(n: int) -> Tensor:
        middles = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        coords = torch.cartesian_prod(middles, middles)[None]
        out: Tensor = model(Domain(coords), field(coords), query=Domain(probe))
        return out

    model = build(query="nearest")
    # Nodes of every grid below: the input is the same there, only the integrals are refined.
    probe = torch.tensor([[[0.5, 0.5], [1 / 6, 5 / 6]]], dtype=torch.float64)
    grid = Domain.grid((16, 16), dtype=torch.float64)
    calibrated(model, grid, field(grid.coords))
    fine = on(81)
    errors = [float((on(n) - fine).norm().detach()) for n in (3, 9, 27)]
    assert errors[1] < errors[0] / 4
    assert errors[2] < errors[1] / 4


@pytest.mark.parametrize("points", [10**3, 10**4, 10**5])
def test_branch_and_residual_stay_comparable(points: int) -> None:
    torch.manual_seed(0)
    config = ONOConfig(width=32, layers=1)
    model = ONO(config, Problem(dim=2, in_channels=1, out_channels=1))
    coords = torch.rand(1, points, 2)
    values = torch.randn(1, points, 1)
    attention = next(model.orthogonal_attentions())
    ratios: list[float] = []
    attention.register_forward_hook(
        lambda _m, args, out: ratios.append(float((out[0].norm() / args[1].norm()).detach()))
    )
    model(Domain(coords), values)
    assert 0.01 < ratios[0] < 100


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_querying_the_input_points_is_the_identity(attention: str) -> None:
    domain, values = cloud()
    for method in ("linear", "nearest"):
        model = calibrated(build(lower={"attention": attention}, query=method), domain, values)
        out = model(domain, values, query=Domain(domain.coords))
        assert torch.allclose(out, model(domain, values), rtol=1e-8, atol=1e-10)


@given(seed=st.integers(0, 99), cut=st.integers(1, 24))
@settings(deadline=None, max_examples=10)
def test_queries_do_not_influence_each_other(seed: int, cut: int) -> None:
    domain, values = cloud()
    model = calibrated(build(), domain, values)
    query = torch.rand(3, 25, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    whole = model(domain, values, query=Domain(query))
    parts = [model(domain, values, query=Domain(q)) for q in (query[:, :cut], query[:, cut:])]
    assert torch.allclose(torch.cat(parts, 1), whole, rtol=1e-8, atol=1e-12)


def test_cross_attention_form_learns_a_map_between_different_points() -> None:
    """Eq. 20: inputs on X, outputs on Y of another number, first layer without a residual."""
    torch.manual_seed(0)
    config = ONOConfig.model_validate(
        {"width": 32, "layers": 2, "query": "cross", "eigen": {"heads": 4, "functions": 8}}
    )
    model = ONO(config, Problem(dim=2, in_channels=1, out_channels=1))
    x, y = torch.rand(8, 60, 2), torch.rand(8, 35, 2)
    phase = torch.rand(8, 1, 1) * 3
    f, u = torch.sin(phase + 2 * x[..., :1]), torch.cos(phase + 2 * y[..., :1] + y[..., 1:])
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(400):
        loss = (model(Domain(x), f, query=Domain(y)) - u).norm() / u.norm()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.1
    calibrate(model, [(Domain(x), f)])
    out = model.eval()(Domain(x), f, query=Domain(y))
    assert out.shape == (8, 35, 1)
    assert float((out - u).norm().detach() / u.norm()) < 0.15


def test_index_positions_cannot_be_queried() -> None:
    domain, values = cloud()
    model = calibrated(build(position="index"), domain, values)
    assert torch.isfinite(model(domain, values)).all()
    with pytest.raises(UnsupportedDomain, match='position="coords"'):
        model(domain, values, query=domain)


def test_times_share_one_lower_flow() -> None:
    domain, values = cloud()
    model = calibrated(build(timed=True), domain, values)
    times = torch.rand(3, 5, dtype=torch.float64)
    together = model(domain, values, time=times)
    assert together.shape == (3, 5, 40, 2)
    for index in range(5):
        one = model(domain, values, time=times[:, index])
        assert torch.allclose(together[:, index], one, rtol=1e-8, atol=1e-10)
    later = model(domain, values, query=domain, time=times)
    assert torch.allclose(later, together, rtol=1e-8, atol=1e-10)


def test_calibration_sees_every_time_that_enters_the_lower_flow() -> None:
    domain, values = cloud()
    times = torch.rand(3, 5, dtype=torch.float64)
    model = build(timed=True, time={"to": "g"})
    twin = copy.deepcopy(model)
    calibrate(model, [(domain, values, times)])
    calibrate(twin, [(domain, values, times[:, index]) for index in range(5)])
    together = model.eval()(domain, values, time=times)
    for index in range(5):
        one = twin.eval()(domain, values, time=times[:, index])
        assert torch.allclose(together[:, index], one, rtol=1e-8, atol=1e-10)


def test_mesh_positions_tell_nodes_apart_that_lie_at_the_same_place() -> None:
    coords = torch.rand(2, 12, 2, dtype=torch.float64)
    coords[:, 5] = coords[:, 2]
    domain, values = Domain(coords, (4, 3)), torch.zeros(2, 12, 1, dtype=torch.float64)
    output = calibrated(build(position="mesh"), domain, values)(domain, values)
    assert not torch.allclose(output[:, 5], output[:, 2])
    model = calibrated(build(position="mesh"), domain, values)
    there = model(domain, values, query=domain.take(torch.tensor([0, 7])))
    torch.testing.assert_close(there, model(domain, values)[:, [0, 7]])
    with pytest.raises(UnsupportedDomain, match="structured mesh"):
        build(position="mesh")(Domain(coords), values)


@pytest.mark.parametrize("position", ["coords", "mesh"])
def test_octaves_are_those_of_the_place_at_queries_too(position: str) -> None:
    """Carried like a value, a sine would be wrong between the points."""
    coords = torch.rand(2, 12, 2, dtype=torch.float64)
    domain, values = Domain(coords, (4, 3)), torch.randn(2, 12, 1, dtype=torch.float64)
    model = calibrated(build(position=position, octaves=3), domain, values)
    there = model(domain, values, query=domain.take(torch.tensor([0, 7])))
    torch.testing.assert_close(there, model(domain, values)[:, [0, 7]])
    seen: list[Tensor] = []
    model.encoder_g.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    query = Domain(torch.rand(2, 5, 2, dtype=torch.float64))
    model(domain, values, query=query)
    places = 2 if position == "coords" else 4
    assert seen[-1].shape[-1] == 7 * places + 1
    expected = (4 * torch.pi * query.coords).sin()
    sines = seen[-1][..., places : 4 * places].unflatten(-1, (3, places))
    torch.testing.assert_close(sines[..., 2, :2], expected)


def test_train_and_eval_agree_when_the_batch_is_the_training_set() -> None:
    domain, values = cloud()
    model = build()
    trained = model.train()(domain, values)
    calibrate(model, [(domain, values)])
    assert torch.allclose(model.eval()(domain, values), trained, rtol=1e-8)


def test_calibration_is_exact_however_the_data_is_cut() -> None:
    domain, values = cloud(batch=6)
    models = [build(), build()]
    calibrate(models[0], [(domain, values)])
    pieces = [(Domain(domain.coords[i : i + 2]), values[i : i + 2]) for i in (4, 0, 2)]
    calibrate(models[1], pieces)
    outs = [model.eval()(domain, values) for model in models]
    assert torch.allclose(outs[0], outs[1], rtol=1e-10)


def test_eigenfunctions_are_orthonormal_over_the_calibration_data() -> None:
    domain, values = cloud(batch=6, points=80)
    model = calibrated(build(eigen={"ridge": 0.0}), domain, values)
    for layer in range(2):
        psi = model.eigenfunctions(domain, values, layer=layer).flatten(0, 1)
        gram = torch.einsum("nhi,nhj->hij", psi, psi) / len(psi)
        assert torch.allclose(gram, torch.eye(4).double().expand(2, 4, 4), atol=1e-8)
    defect = orthonormality_defect(model)
    assert defect is not None
    assert defect < 1e-8
    with pytest.raises(ShapeError, match="layer must be 0 to 1, got 2"):
        model.eigenfunctions(domain, values, layer=2)


def test_untrained_model_can_be_evaluated_and_a_stale_one_refuses() -> None:
    domain, values = cloud()
    model = build().eval()
    assert torch.isfinite(model(domain, values)).all()
    model.train()(domain, values)
    with pytest.raises(NotCalibrated, match="calibrate"):
        model.eval()(domain, values)
    calibrate(model, [(domain, values)])
    assert torch.isfinite(model(domain, values)).all()


def test_running_covariance_can_be_used_instead() -> None:
    domain, values = cloud()
    model = build(eigen={"eval_covariance": "ema"})
    model.train()(domain, values)
    assert torch.isfinite(model.eval()(domain, values)).all()


def test_deepcopy_and_input_gradients_work_after_training() -> None:
    domain, values = cloud()
    model = build()
    for _ in range(3):
        model.train()(domain, values).sum().backward()
    twin = calibrated(copy.deepcopy(model), domain, values)
    values = values.requires_grad_(True)
    for _ in range(2):
        (grad,) = torch.autograd.grad(twin(domain, values).sum(), values)
        assert torch.isfinite(grad).all()
        assert grad.abs().sum() > 0


def test_state_dict_keys_are_stable_and_public() -> None:
    domain, values = cloud()
    model = build()
    keys = list(model.state_dict())
    model.train()(domain, values).sum().backward()
    calibrate(model, [(domain, values)])
    assert list(model.state_dict()) == keys
    for name in ("norm.moments.exact", "norm.moments.running", "folded", "w_q.weight", "raw_mu"):
        assert f"upper.0.attention.{name}" in keys


def test_saved_model_is_bit_equal_in_a_fresh_process(tmp_path: Path) -> None:
    config = ONOConfig(width=16, layers=2)
    model = ONO(config, Problem(dim=2, in_channels=1, out_channels=1))
    domain, values = cloud()
    domain, values = Domain(domain.coords.float()), values.float()
    model.train()(domain, values)
    calibrate(model, [(domain, values)])
    out = model.eval()(domain, values)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    save_file({"x": domain.coords.clone(), "a": values}, tmp_path / "case.safetensors")
    script = """
import sys, torch
from safetensors.torch import load_file, save_file
from ono import ONO, Domain, ONOConfig, Problem
model = ONO(ONOConfig(width=16, layers=2), Problem(dim=2, in_channels=1, out_channels=1))
model.load_state_dict(load_file(sys.argv[1] + "/model.safetensors"))
case = load_file(sys.argv[1] + "/case.safetensors")
with torch.no_grad():
    save_file({"u": model.eval()(Domain(case["x"]), case["a"])}, sys.argv[1] + "/out.safetensors")
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert torch.equal(load_file(tmp_path / "out.safetensors")["u"], out.detach())


def test_wrong_shapes_are_named() -> None:
    domain, values = cloud()
    model = build()
    with pytest.raises(ShapeError, match=r"got \[3, 40, 3\]; coordinates come from the domain"):
        model(domain, torch.cat((domain.coords, values), -1))
    with pytest.raises(ShapeError, match="built for 2 coordinates, got 3"):
        model(Domain(torch.rand(3, 40, 3).double()), values)
    with pytest.raises(ShapeError, match="timed=False"):
        model(domain, values, time=torch.zeros(3).double())
    with pytest.raises(ShapeError, match="needs a time"):
        build(timed=True)(domain, values)


def test_compiled_model_agrees_with_eager() -> None:
    script = """
import torch
from ono import ONO, Domain, ONOConfig, Problem
torch.manual_seed(0)
config = ONOConfig.model_validate({"width": 16, "layers": 2, "eigen": {"heads": 2, "functions": 4}})
model = ONO(config, Problem(dim=2, in_channels=1, out_channels=1))
domain, a = Domain.grid((6, 6), batch=2), torch.randn(2, 36, 1)
eager = model(domain, a)
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(domain, a)
assert torch.allclose(eager, compiled, atol=1e-5), (eager - compiled).abs().max()
gradients = [torch.autograd.grad(out.square().sum(), model.upper[0].attention.w_q.weight)[0]
             for out in (eager, compiled)]
assert torch.allclose(*gradients, rtol=1e-3, atol=1e-6)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
