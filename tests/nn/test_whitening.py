from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ono.errors import NotCalibrated
from ono.nn.eigen_options import EigenOptions
from ono.nn.measure import Measure
from ono.nn.moments import commit
from ono.nn.whitening import (
    SampleWhitening,
    Whitening,
    failed_factorisations,
    inverse_cholesky,
    orthonormality_defect,
    second_moments,
)

UNIFORM = Measure()


def features(seed: int, batch: int = 4, points: int = 60, modes: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(modes, modes, generator=generator, dtype=torch.float64)
    return torch.randn(batch, points, modes, generator=generator, dtype=torch.float64) @ mix


def gram(psi: Tensor, heads: int) -> Tensor:
    split: Tensor = psi.double().flatten(0, 1).unflatten(-1, (heads, -1)).transpose(0, 1)
    return split.mT @ split / split.shape[1]


def eye_like(matrices: Tensor) -> Tensor:
    return torch.eye(matrices.shape[-1], dtype=matrices.dtype).expand_as(matrices)


def test_whitened_batch_is_orthonormal_to_rounding_without_ridge() -> None:
    whitening = Whitening(EigenOptions(functions=4, heads=2, ridge=0.0))
    g_hat = features(0)
    psi = whitening.eigenfunctions(g_hat, whitening.statistics(g_hat, UNIFORM))
    assert torch.allclose(gram(psi, 2), eye_like(gram(psi, 2)), atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_defect_stays_within_its_bound(dtype: torch.dtype) -> None:
    """‖mean ψᵀψ - I‖ ≤ 1e-3 + sqrt(k) ρ cond(C), for features of condition number 1e4 and more."""
    options = EigenOptions(functions=16, heads=1, ridge=1e-5)
    whitening = Whitening(options)
    scales = torch.logspace(0, -2.5, 16, dtype=torch.float64)
    g_hat = (features(1, points=400, modes=16) * scales).to(dtype)
    covariance = second_moments(g_hat, 1, UNIFORM).sum(0) / len(g_hat)
    psi = whitening.eigenfunctions(g_hat, whitening.statistics(g_hat, UNIFORM))
    defect = float((gram(psi, 1) - eye_like(gram(psi, 1))).norm())
    condition = float(torch.linalg.cond(covariance[0]))
    assert condition > 1e4
    assert defect <= 1e-3 + math.sqrt(16) * options.ridge * condition


def test_bfloat16_features_under_autocast_do_not_break_the_factorisation() -> None:
    whitening = Whitening(EigenOptions(functions=16, heads=2))
    g_hat = features(2, points=500, modes=32).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        psi = whitening.eigenfunctions(g_hat, whitening.statistics(g_hat, UNIFORM))
    assert torch.isfinite(psi).all()
    assert failed_factorisations(whitening) == 0


@given(power=st.integers(-4, 4))
def test_scale_of_the_features_does_not_matter(power: int) -> None:
    whitening = Whitening(EigenOptions(functions=4, heads=2))
    g_hat = features(3)
    reference = whitening.eigenfunctions(g_hat, whitening.statistics(g_hat, UNIFORM))
    scaled = g_hat * 10.0**power
    psi = whitening.eigenfunctions(scaled, whitening.statistics(scaled, UNIFORM))
    assert torch.allclose(psi, reference, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["rank one", "zero", "huge", "tiny", "fewer points than modes"])
def test_degenerate_features_stay_finite(kind: str) -> None:
    g_hat = features(4).float()
    if kind == "rank one":
        g_hat = g_hat[..., :1].repeat(1, 1, 8)
    elif kind == "fewer points than modes":
        g_hat = g_hat[:1, :2]
    else:
        g_hat = g_hat * {"zero": 0.0, "huge": 1e6, "tiny": 1e-6}[kind]
    g_hat.requires_grad_(True)
    whitening = Whitening(EigenOptions(functions=4, heads=2))
    statistics = whitening.statistics(g_hat, UNIFORM)
    kernel = whitening.kernel(torch.ones(2, 4), statistics)
    latent = kernel @ torch.ones(2, 4, 1, dtype=torch.float64)
    out = whitening.eigenfunctions(g_hat, statistics).square().sum()
    (grad,) = torch.autograd.grad(out, g_hat)
    assert torch.isfinite(latent).all()
    assert torch.isfinite(grad).all()
    assert failed_factorisations(whitening) == 0


def test_non_finite_features_are_counted_and_never_raise() -> None:
    whitening = Whitening(EigenOptions(functions=4, heads=2))
    g_hat = features(5)
    g_hat[0, 0, 0] = torch.nan
    psi = whitening.eigenfunctions(g_hat, whitening.statistics(g_hat, UNIFORM))
    assert not torch.isfinite(psi).all()
    assert failed_factorisations(whitening) == 1  # the other head is clean


def test_what_cannot_be_factored_is_no_number() -> None:
    matrix = torch.stack((torch.diag(torch.tensor([1.0, -1.0, 1.0])), torch.eye(3))).double()
    inverse, info = inverse_cholesky(matrix, 0.0)
    assert info.tolist() == [2, 0]
    assert inverse[0].isnan().all()
    assert torch.equal(inverse[1], matrix[1])


def test_inverse_cholesky_matches_the_definition() -> None:
    covariance = second_moments(features(6), 2, UNIFORM).sum(0)
    inverse, info = inverse_cholesky(covariance, ridge=1e-3)
    scale = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    expected = torch.linalg.cholesky(covariance + 1e-3 * scale * eye_like(covariance))
    assert torch.allclose(inverse @ expected, eye_like(expected), atol=1e-10)
    assert info.tolist() == [0, 0]


@pytest.mark.parametrize("ridge", [0.0, 1e-2])
def test_inverse_cholesky_has_the_right_gradient(ridge: float) -> None:
    covariance = second_moments(features(6), 2, UNIFORM).sum(0).requires_grad_()

    def inverse(matrix: torch.Tensor) -> torch.Tensor:
        return inverse_cholesky((matrix + matrix.mT) / 2, ridge)[0]

    assert torch.autograd.gradcheck(inverse, (covariance,))


def test_inverse_cholesky_of_nothing_has_no_gradient_through_its_scale() -> None:
    nothing = torch.zeros(1, 3, 3, dtype=torch.float64, requires_grad=True)
    inverse, _ = inverse_cholesky(nothing, ridge=0.25)
    assert torch.allclose(inverse, 2 * torch.eye(3, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(inverse.sum(), nothing)
    assert torch.allclose(gradient, torch.full((3, 3), -4.0, dtype=torch.float64))


def test_weights_enter_the_covariance_and_padding_does_not() -> None:
    g_hat = features(7)
    weights = torch.rand(4, 60, dtype=torch.float64)
    weights[:, 50:] = 0
    weights = weights / weights.sum(-1, keepdim=True)
    whole = second_moments(g_hat, 2, Measure(weights)).sum(0)
    g_hat[:, 50:] = 1e9
    assert torch.allclose(second_moments(g_hat, 2, Measure(weights)).sum(0), whole, rtol=1e-12)


def test_sums_do_not_depend_on_how_the_data_is_cut() -> None:
    g_hat = features(8, batch=6)
    whole, parts = (Whitening(EigenOptions(functions=4, heads=2)) for _ in range(2))
    whole.observe(g_hat, UNIFORM)
    for part in g_hat.split([1, 3, 2]):
        parts.observe(part, UNIFORM)
    for whitening in (whole, parts):
        whitening.moments.settle()
    assert torch.allclose(whole.moments.exact, parts.moments.exact, rtol=1e-13)


def test_running_mean_is_corrected_for_its_start_and_gated() -> None:
    whitening = Whitening(EigenOptions(functions=4, heads=2, momentum=0.9, eval_covariance="ema"))
    g_hat = features(9)
    covariance = second_moments(g_hat, 2, UNIFORM).sum(0) / 4
    whitening.statistics(g_hat, UNIFORM)
    commit(whitening)
    assert torch.allclose(whitening.moments.recorded(), covariance, rtol=1e-12)
    whitening.statistics(g_hat * torch.nan, UNIFORM)
    commit(whitening, applied=False)
    assert torch.allclose(whitening.moments.recorded(), covariance, rtol=1e-12)
    assert float(whitening.moments.updates) == 1


def test_ema_training_uses_the_blend_without_gradient() -> None:
    whitening = Whitening(EigenOptions(functions=4, heads=2, covariance="ema", momentum=0.5))
    first, second = features(10), 3 * features(11)
    whitening.statistics(first, UNIFORM)
    commit(whitening)
    second.requires_grad_(True)
    inverse = whitening.statistics(second, UNIFORM)
    blend = (
        second_moments(first, 2, UNIFORM).sum(0) / 3
        + second_moments(second, 2, UNIFORM).sum(0) * 2 / 3
    ) / 4
    expected, _ = inverse_cholesky(blend.detach(), whitening.options.ridge)
    assert torch.allclose(inverse, expected, rtol=1e-10)
    assert not inverse.requires_grad


def test_stale_statistics_are_refused_and_fresh_ones_are_the_identity() -> None:
    whitening = Whitening(EigenOptions(functions=4, heads=2, ridge=0.0))
    assert torch.allclose(whitening.eval().frozen(), eye_like(whitening.moments.exact))
    whitening.train().statistics(features(12), UNIFORM)
    with pytest.raises(NotCalibrated, match=r"ono\.calibrate"):
        whitening.eval().statistics(features(12), UNIFORM)


def test_state_survives_saving_copying_and_needs_no_training_first() -> None:
    trained, fresh = (Whitening(EigenOptions(functions=4, heads=2)) for _ in range(2))
    keys = set(fresh.state_dict())
    trained.statistics(features(13), UNIFORM)
    trained.moments.reset()
    trained.observe(features(13), UNIFORM)
    trained.moments.settle()
    assert set(trained.state_dict()) == keys
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh.eval().frozen(), trained.eval().frozen())
    assert fresh.moments.state == "calibrated"
    twin = copy.deepcopy(trained)
    assert torch.equal(twin.frozen(), trained.frozen())
    assert not any(buffer.requires_grad for buffer in trained.buffers())


def test_the_defect_is_that_of_the_functions_on_the_calibration_data() -> None:
    whitening = Whitening(EigenOptions(functions=4, heads=2, ridge=0.1))
    g_hat = features(14)
    whitening.observe(g_hat, UNIFORM)
    whitening.moments.settle()
    psi = whitening.eval().eigenfunctions(g_hat, whitening.frozen())
    defects = torch.linalg.matrix_norm(gram(psi, 2) - eye_like(gram(psi, 2)))
    assert orthonormality_defect(whitening) == pytest.approx(float(defects.max()), rel=1e-9)
    assert float(defects.max()) > 0.01  # what so large a ridge does


def test_samples_whitened_alone_are_orthonormal_each() -> None:
    whitening = SampleWhitening(EigenOptions(functions=4, heads=2, covariance="sample", ridge=0.0))
    g_hat = features(5)
    weights = torch.rand(len(g_hat), g_hat.shape[1], dtype=torch.float64)
    measure = Measure(weights / weights.sum(-1, keepdim=True))
    psi = whitening.eigenfunctions(g_hat, whitening.statistics(g_hat, measure))
    each = second_moments(psi, 2, measure)
    assert torch.allclose(each, eye_like(each), atol=1e-10)
    assert orthonormality_defect(whitening) is None
