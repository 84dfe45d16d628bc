"""The Galerkin Transformer in its three forms: published sizes, grids, points, refusals."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from ono.domain import Domain
from ono.errors import ShapeError, UnsupportedDomain
from ono.models.galerkin import Galerkin
from ono.models.galerkin_config import GalerkinConfig
from ono.problem import Problem

SMALL = {"width": 12, "layers": 2, "heads": 2, "coarse": 7, "spectral_width": 6, "modes": 3}
CLOUD = Problem(dim=2, in_channels=1, out_channels=2)
GRID = Problem.grid((13, 13), in_channels=1, out_channels=2)


def build(problem: Problem, **options: Any) -> Galerkin:
    torch.manual_seed(0)
    model = Galerkin(GalerkinConfig.model_validate(SMALL | options), problem).double()
    for parameter in model.parameters():  # leave the small start so that layers matter
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def cloud(batch: int = 3, points: int = 40) -> tuple[Domain, Tensor]:
    generator = torch.Generator().manual_seed(1)
    coords = torch.rand(batch, points, 2, generator=generator, dtype=torch.float64)
    return Domain(coords), torch.randn(batch, points, 1, generator=generator, dtype=torch.float64)


def grid(shape: tuple[int, int], batch: int = 2) -> tuple[Domain, Tensor]:
    domain = Domain.grid(shape, batch=batch, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    return domain, torch.randn(batch, domain.points, 1, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("config", "shape", "inputs", "count"),
    [
        (GalerkinConfig(), (85, 85), 1, 2_220_829),
        (GalerkinConfig(), (141, 141), 1, 2_220_829),
        (GalerkinConfig.lite(), (64, 64), 10, 862_049),
        # The learned value on the rim stands for the published zero.
        (GalerkinConfig(boundary="constant"), (85, 85), 1, 2_220_830),
    ],
)
def test_published_models_have_their_parameter_counts(
    config: GalerkinConfig, shape: tuple[int, ...], inputs: int, count: int
) -> None:
    model = Galerkin(config, Problem.grid(shape, in_channels=inputs, out_channels=1))
    assert sum(p.numel() for p in model.parameters()) == count


def test_form_follows_the_problem() -> None:
    curved = Problem.grid((13, 13), in_channels=1, out_channels=1, kind="structured")
    no_inputs = Problem.grid((13, 13), in_channels=0, out_channels=1)
    forms = [build(problem).form for problem in (GRID, curved, CLOUD, no_inputs)]
    assert forms == ["scaled", "points", "points", "points"]


@pytest.mark.parametrize(
    ("problem", "options", "message"),
    [
        (CLOUD, {"form": "scaled"}, "got scattered points; use form=points"),
        (
            Problem(dim=2, in_channels=0, out_channels=1, points=972),
            {"form": "lite"},
            "got 972 scattered points",
        ),
        (
            Problem.grid((9, 5), in_channels=1, out_channels=1, kind="structured"),
            {"form": "lite"},
            r"curved mesh of shape \(9, 5\)",
        ),
        (
            Problem.grid((4, 4, 4, 4), in_channels=1, out_channels=1),
            {"form": "lite"},
            "a grid of 4 axes",
        ),
        (
            Problem.grid((9, 9), in_channels=0, out_channels=1),
            {"form": "scaled"},
            "got no input channels",
        ),
        (CLOUD, {"boundary": "constant"}, "knows no rim"),
    ],
)
def test_what_a_form_cannot_handle_is_refused(
    problem: Problem, options: dict[str, str], message: str
) -> None:
    with pytest.raises(UnsupportedDomain, match=message):
        build(problem, **options)


def test_grid_forms_refuse_masks_scattered_points_and_wrong_channels() -> None:
    domain, values = grid((13, 13))
    mask = torch.ones(2, 169, dtype=torch.bool)
    with pytest.raises(UnsupportedDomain, match="got a mask; use form=points"):
        build(GRID)(Domain(domain.coords, domain.shape, mask=mask), values)
    with pytest.raises(UnsupportedDomain, match="169 scattered points"):
        build(GRID)(Domain(domain.coords), values)
    with pytest.raises(ShapeError, match="galerkin expected values"):
        build(GRID)(domain, values.expand(-1, -1, 3))


@pytest.mark.parametrize("form", ["scaled", "lite"])
@pytest.mark.parametrize("shape", [(13, 13), (20, 9), (5, 4), (3, 31)])
def test_one_model_runs_on_grids_of_any_size(form: str, shape: tuple[int, int]) -> None:
    out = build(GRID, form=form, boundary="constant")(*grid(shape))
    assert out.shape == (2, shape[0] * shape[1], 2)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("form", ["scaled", "lite"])
def test_lines_and_volumes(form: str, axes: int) -> None:
    shape = (8, 7, 6)[:axes]
    model = build(Problem.grid(shape, in_channels=2, out_channels=1), form=form)
    domain = Domain.grid(shape, batch=2, dtype=torch.float64)
    values = torch.randn(2, domain.points, 2, dtype=torch.float64)
    assert model(domain, values).shape == (2, domain.points, 1)


def test_lite_is_its_written_formula() -> None:
    """Lift, post-norm attention over all nodes, spectral layers by an explicit Fourier sum."""
    model: Any = build(GRID, form="lite", norm="block")
    domain, values = grid((9, 8))
    x = model.encoder(torch.cat((values, domain.coords), -1))
    for block in model.blocks:
        a = block.attention
        parts = []
        for own in (slice(0, 6), slice(6, 12)):
            q, k, v = (
                torch.cat((domain.coords, part(x)[..., own]), -1)
                for part in (a.query, a.key, a.value)
            )
            parts.append(q @ k.mT @ v / 72)
        x = block.norm_attention(x + a.out(torch.cat(parts, -1)))
        x = block.norm_ffn(x + block.ffn[3](block.ffn[0](x).relu()))
    x = x.unflatten(1, (9, 8))
    for spectral, local in zip(model.decoder.spectral, model.decoder.local, strict=True):
        weight = torch.view_as_complex(spectral.weight)
        given = torch.fft.rfft2(x, dim=(1, 2))
        kept = torch.zeros(2, 9, 5, weight.shape[-1], dtype=given.dtype)
        for row in (0, 1, 2, -3, -2, -1):
            kept[:, row, :3] = torch.einsum("bki,kio->bko", given[:, row, :3], weight[row])
        x = torch.fft.irfft2(kept, s=(9, 8), dim=(1, 2)) + local(x)
        x = x * x.sigmoid()
    expected = model.decoder.out(x).flatten(1, 2)
    torch.testing.assert_close(model(domain, values), expected)


def test_evaluation_is_the_same_twice_and_training_is_not() -> None:
    domain, values = grid((13, 13))
    model = build(GRID, dropout=0.3)
    assert torch.equal(model(domain, values), model(domain, values))
    model.train()
    assert not torch.equal(model(domain, values), model(domain, values))


def test_the_rim_has_one_value_and_the_inside_is_free() -> None:
    domain, values = grid((13, 13))
    model = build(GRID, boundary="constant")
    assert model.rim is not None
    out = model(domain, values).unflatten(1, (13, 13))
    for edge in (out[:, 0], out[:, -1], out[:, :, 0], out[:, :, -1]):
        torch.testing.assert_close(edge, 10 * model.rim.expand_as(edge))
    free = build(GRID)
    free.load_state_dict(model.state_dict(), strict=False)
    inside = free(domain, values).unflatten(1, (13, 13))[:, 1:-1, 1:-1]
    torch.testing.assert_close(out[:, 1:-1, 1:-1], inside)


def test_output_follows_the_order_of_the_points() -> None:
    domain, values = cloud()
    model = build(CLOUD)
    order = torch.randperm(40)
    torch.testing.assert_close(
        model(domain.take(order), values[:, order]), model(domain, values)[:, order]
    )


@pytest.mark.parametrize("measure", ["mean", "weights"])
def test_padding_changes_neither_outputs_nor_gradients(measure: str) -> None:
    domain, values = cloud()
    model = build(CLOUD, measure=measure)
    weights = torch.rand(3, 40, dtype=torch.float64)
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[0, 25:] = False
    padded = Domain(domain.coords, None, weights, mask)
    junk = torch.where(mask[..., None], values, 1e3).requires_grad_()
    parameters = list(model.parameters())
    together = model(padded, junk)[:1, :25]
    alone = model(Domain(domain.coords[:1, :25], None, weights[:1, :25]), values[:1, :25])
    torch.testing.assert_close(together, alone)
    gradients = torch.autograd.grad(together.square().sum(), [*parameters, junk])
    expected = torch.autograd.grad(alone.square().sum(), parameters)
    for got, wanted in zip(gradients, expected, strict=False):
        torch.testing.assert_close(got, wanted)
    assert not gradients[-1][~mask].any()


def test_queries_continue_the_flow_on_points() -> None:
    domain, values = cloud()
    model = build(CLOUD)
    here = model(domain, values)
    torch.testing.assert_close(model(domain, values, query=Domain(domain.coords)), here)
    query = torch.rand(3, 25, 2, dtype=torch.float64)
    whole = model(domain, values, query=Domain(query))
    part = model(domain, values, query=Domain(query[:, :7]))
    torch.testing.assert_close(whole[:, :7], part)


def test_queries_on_a_grid_interpolate_the_output() -> None:
    domain, values = grid((13, 13))
    model = build(GRID)
    query = Domain((domain.coords[:, :12] + domain.coords[:, 1:13]) / 2)
    here = model(domain, values)
    expected = (here[:, :12] + here[:, 1:13]) / 2
    torch.testing.assert_close(model(domain, values, query=query), expected)


@pytest.mark.parametrize("kind", ["grid", "structured"])
def test_times_enter_and_can_be_asked_together(kind: Any) -> None:
    problem = Problem.grid((9, 8), in_channels=1, out_channels=2, timed=True, kind=kind)
    model = build(problem)
    domain, values = grid((9, 8))
    times = torch.rand(2, 3, dtype=torch.float64)
    together = model(domain, values, time=times)
    assert together.shape == (2, 3, 72, 2)
    for index in range(3):
        torch.testing.assert_close(together[:, index], model(domain, values, time=times[:, index]))
    assert not torch.allclose(together[:, 0], together[:, 1])


def test_without_input_channels_the_geometry_decides() -> None:
    model = build(Problem(dim=2, in_channels=0, out_channels=1))
    domain, values = cloud()
    out = model(domain, values[..., :0])
    assert out.shape == (3, 40, 1)
    assert not torch.allclose(out[0], out[1])


@pytest.mark.slow
def test_compiled_model_agrees_with_eager() -> None:
    script = """
import torch
from ono.domain import Domain
from ono.models.galerkin import Galerkin
from ono.models.galerkin_config import GalerkinConfig
from ono.problem import Problem
torch.manual_seed(0)
domain, a = Domain.grid((9, 8), batch=2), torch.randn(2, 72, 1)
for form in ("scaled", "lite", "points"):
    config = GalerkinConfig(form=form, width=8, layers=1, heads=2, coarse=5, modes=3,
                            spectral_width=4, dropout=0, measure="weights",
                            boundary="free" if form == "points" else "constant")
    model = Galerkin(config, Problem.grid((9, 8), in_channels=1, out_channels=1))
    eager = model(domain, a)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(domain, a)
    assert torch.allclose(eager, compiled, atol=1e-6), (eager - compiled).abs().max()
    grads = [torch.autograd.grad(out.square().sum(), model.blocks[0].attention.key.weight)[0]
             for out in (eager, compiled)]
    assert torch.allclose(*grads, rtol=1e-3, atol=1e-7)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(model(domain, a).float(), eager, atol=0.05, rtol=0.05)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
