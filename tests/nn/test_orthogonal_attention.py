from __future__ import annotations

from itertools import product
from typing import Literal

import pytest
import torch
from torch import Tensor

from ono.errors import RecipeError
from ono.nn.eigen_options import EigenOptions
from ono.nn.measure import Measure
from ono.nn.orthogonal_attention import OrthogonalAttention, paper_form

LOWER, WIDTH = 12, 16


def case(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(3, 50, LOWER, generator=generator, dtype=torch.float64, requires_grad=True)
    h = torch.randn(3, 50, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
    return g, h


def measures() -> dict[str, Measure]:
    weights = torch.rand(3, 50, dtype=torch.float64)
    weights = weights / weights.sum(-1, keepdim=True)
    return {
        "mean": Measure(),
        "sum": Measure(None, 50.0),
        "weights": Measure(weights),
        "ragged sum": Measure(weights, torch.tensor([50.0, 40.0, 30.0], dtype=torch.float64)),
    }


def attention(options: EigenOptions) -> OrthogonalAttention:
    torch.manual_seed(1)
    layer = OrthogonalAttention(WIDTH, LOWER, options).double()
    torch.nn.init.normal_(layer.raw_mu)
    return layer


@pytest.mark.parametrize(
    ("heads", "projected", "covariance", "norm"),
    [
        *product((1, 2), (True, False), ("batch", "ema", "sample"), ("ortho",)),
        *product((2,), (True,), ("batch",), ("bn", "ln", "none")),
    ],
)
@pytest.mark.parametrize("measure", ["mean", "sum", "weights", "ragged sum"])
def test_latent_side_equals_the_printed_form(
    heads: int,
    projected: bool,
    covariance: Literal["batch", "ema", "sample"],
    norm: Literal["ortho", "bn", "ln", "none"],
    measure: str,
) -> None:
    """Values and all gradients agree to 1e-10 in float64."""
    layer = attention(
        EigenOptions(
            functions=4,
            heads=heads,
            value_projection=projected,
            covariance=covariance,
            norm=norm,
        )
    )
    (g, h), mu = case(), measures()[measure]
    fast, _ = layer(layer.basis(g, mu), h, mu)
    printed = paper_form(layer, g, h, mu)
    assert torch.allclose(fast, printed, rtol=1e-10, atol=1e-10)
    probe = torch.randn_like(fast)
    inputs = [g, h, *layer.parameters()]
    fast_grads = torch.autograd.grad((fast * probe).sum(), inputs)
    printed_grads = torch.autograd.grad((printed * probe).sum(), inputs)
    for ours, theirs in zip(fast_grads, printed_grads, strict=True):
        scale = max(1.0, float(theirs.abs().max()))
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-10 * scale)


def test_heads_act_on_their_own_channels() -> None:
    layer = attention(EigenOptions(functions=4, heads=2, value_projection=False))
    g, h = case()
    before, _ = layer(layer.basis(g, Measure()), h, Measure())
    changed = h.detach().clone()
    changed[..., : WIDTH // 2] += 1
    after, _ = layer(layer.basis(g, Measure()), changed, Measure())
    assert torch.allclose(after[..., WIDTH // 2 :], before[..., WIDTH // 2 :], rtol=1e-12)
    assert not torch.allclose(after[..., : WIDTH // 2], before[..., : WIDTH // 2])


def test_reading_at_the_same_points_gives_the_same() -> None:
    layer = attention(EigenOptions(functions=4, heads=2))
    g, h = case()
    out, told = layer(layer.basis(g, Measure()), h, Measure())
    assert torch.allclose(layer.read(g, told), out, rtol=1e-12)


@pytest.mark.parametrize("covariance", ["batch", "sample"])
def test_times_share_the_eigenfunctions(covariance: Literal["batch", "sample"]) -> None:
    layer = attention(EigenOptions(functions=4, heads=2, covariance=covariance))
    g, h = case()
    stacked = torch.stack((h, 2 * h), 1)
    out, _ = layer(layer.basis(g, Measure()), stacked, Measure())
    alone, _ = layer(layer.basis(g, Measure()), h, Measure())
    assert torch.allclose(out[:, 0], alone, rtol=1e-10)
    assert torch.allclose(out[:, 1], 2 * alone, rtol=1e-10)


@pytest.mark.parametrize("norm", ["ortho", "bn", "ln", "none"])
def test_folded_equals_unfolded(norm: Literal["ortho", "bn", "ln", "none"]) -> None:
    layer = attention(EigenOptions(functions=4, heads=2, norm=norm))
    g, h = case()
    layer.observe(g, Measure())
    layer.settle()
    layer.eval()
    folded, _ = layer(layer.basis(g, Measure()), h, Measure())
    layer.fold = False
    unfolded, _ = layer(layer.basis(g, Measure()), h, Measure())
    assert torch.allclose(folded, unfolded, rtol=1e-12, atol=1e-14)


def test_recovers_the_top_eigenfunctions_of_a_linear_operator() -> None:
    """Eqs. 16-19: one linear layer, white inputs; the span of ψ becomes the leading eigenspace."""
    torch.manual_seed(0)
    points, k = 40, 3
    basis, _ = torch.linalg.qr(torch.randn(points, points, dtype=torch.float64))
    spectrum = torch.tensor([3.0, 2.0, 1.5, *[0.3] * (points - 3)], dtype=torch.float64)
    operator = basis * spectrum @ basis.T
    layer = OrthogonalAttention(1, points, EigenOptions(functions=k, heads=1, bias=False)).double()
    layer.w_v = None
    g = torch.eye(points, dtype=torch.float64)[None]
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(400):
        h = torch.randn(64, points, 1, dtype=torch.float64)
        out, _ = layer(layer.basis(g.expand(64, -1, -1), Measure()), h, Measure())
        loss = (out - operator @ h).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    psi = layer.eigenfunctions(g, Measure())[0, :, 0] / points**0.5
    cosines = torch.linalg.svdvals(torch.linalg.qr(psi)[0].T @ basis[:, :k])
    assert float(cosines.detach().min()) > 0.98
    assert torch.allclose(layer.mu.sort(descending=True).values[0], spectrum[:k], rtol=0.1)


def test_width_must_fit_the_heads() -> None:
    with pytest.raises(RecipeError, match=r"model\.eigen\.heads, got 10 and 4"):
        OrthogonalAttention(10, 8, EigenOptions(heads=4))
