"""Physics attention against explicit matrices, and what its sums must not see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ono.domain import Domain
from ono.errors import RecipeError, UnsupportedDomain
from ono.nn.measure import Measure
from ono.nn.mlp import EndLinear
from ono.nn.physics_attention import MeshConvolution, PhysicsAttention


def attention(axes: int | None = None, width: int = 8) -> PhysicsAttention:
    torch.manual_seed(0)
    module = PhysicsAttention(width, heads=2, slices=3, axes=axes).double()
    for name, parameter in module.named_parameters():
        if name != "temperature":
            torch.nn.init.normal_(parameter, std=0.5)
    return module


def dense(module: PhysicsAttention, x: Tensor, g: Tensor, f: Tensor, weights: Tensor) -> Tensor:
    """Return the attention of one sample as products of explicit matrices, head by head."""
    share, parts = x.shape[-1] // module.heads, []
    for head in range(module.heads):
        mine = slice(head * share, (head + 1) * share)
        tau = module.temperature[head, 0, 0]
        tau = tau.clamp(0.1, 5) if module.on_mesh else tau
        logits = (g[:, mine] @ module.slice.weight.T + module.slice.bias) / tau
        w = logits.exp() / logits.exp().sum(1, keepdim=True)  # [N G]
        size = w.T @ weights + 1e-8  # of each slice
        gather = torch.diag(1 / size) @ w.T @ torch.diag(weights)  # [G N], a mean over a slice
        z = gather @ f[:, mine]
        scores = (z @ module.q.weight.T) @ (z @ module.k.weight.T).T / share**0.5
        mixing = scores.exp() / scores.exp().sum(1, keepdim=True)  # [G G]
        between = w @ mixing @ gather  # the N x N matrix that physics attention never forms
        parts.append(between @ f[:, mine] @ module.v.weight.T)
    return torch.cat(parts, 1) @ module.out.weight.T + module.out.bias


@pytest.mark.parametrize("weighted", [False, True])
def test_linear_form_is_the_dense_formula(weighted: bool) -> None:
    module, x = attention(), torch.randn(2, 11, 8, dtype=torch.float64)
    weights = torch.rand(2, 11, dtype=torch.float64) if weighted else torch.ones(2, 11).double()
    weights = weights / weights.sum(1, keepdim=True)
    out, tokens = module(x, Measure(weights if weighted else None))
    for i in range(2):
        twin = dense(module, x[i], module.to_slices(x[i]), module.to_features(x[i]), weights[i])
        assert torch.allclose(out[i], twin)
    assert torch.allclose(module.read(x, tokens), out)


@pytest.mark.parametrize(("axes", "shape"), [(1, (11,)), (2, (3, 5)), (3, (2, 3, 4))])
def test_mesh_form_takes_its_projections_from_neighbours(axes: int, shape: tuple[int, ...]) -> None:
    module, points = attention(axes), torch.Size(shape).numel()
    module.temperature.data.fill_(0.01)  # below what the released code allows
    x = torch.randn(1, points, 8, dtype=torch.float64)
    out, _ = module(x, Measure(), shape)
    g, f = (part(x, shape, None)[0] for part in (module.to_slices, module.to_features))
    weights = torch.full((points,), 1 / points, dtype=torch.float64)
    assert torch.allclose(out[0], dense(module, x[0], g, f, weights))


def test_convolution_sees_the_nine_nodes_around_a_node() -> None:
    torch.manual_seed(0)
    convolution = MeshConvolution(2, 3, axes=2).double()
    x = torch.randn(1, 5 * 7, 2, dtype=torch.float64)
    out = convolution(x, (5, 7), None).unflatten(1, (5, 7))
    bias = convolution.convolution.bias
    kernel = convolution.convolution.weight
    assert bias is not None
    image = torch.nn.functional.pad(x.unflatten(1, (5, 7)), (0, 0, 1, 1, 1, 1))
    for i, j in ((0, 0), (2, 3), (4, 6), (0, 5)):
        around = image[0, i : i + 3, j : j + 3]
        assert torch.allclose(out[0, i, j], torch.einsum("xyc,ocxy->o", around, kernel) + bias)


@pytest.mark.parametrize("axes", [None, 2])
def test_padding_changes_neither_outputs_nor_gradients(axes: int | None) -> None:
    module, shape = attention(axes), (3, 4)
    mask = torch.ones(1, 12, dtype=torch.bool)
    mask[0, 8:] = False  # the last row of the mesh
    x = torch.randn(1, 12, 8, dtype=torch.float64)
    results, parameters = [], list(module.parameters())
    for rubbish in (0.0, 1e3):
        filled = torch.where(mask[..., None], x, rubbish)
        domain = Domain(torch.rand(1, 12, 2).double(), shape, None, mask)
        out, _ = module(filled, Measure(domain.measure()), shape, mask)
        results.append((out[:, :8], torch.autograd.grad(out[:, :8].sum(), parameters)))
    alone, _ = module(x[:, :8], Measure(), (2, 4))
    assert torch.allclose(results[0][0], alone, atol=1e-6)
    assert torch.allclose(results[0][0], results[1][0])
    for a, b in zip(results[0][1], results[1][1], strict=True):
        assert torch.allclose(a, b)


def test_a_slice_without_points_stays_finite() -> None:
    module = attention().float()
    with torch.no_grad():
        module.slice.bias.copy_(torch.tensor([0.0, -1e4, 0.0]))
    out, tokens = module(torch.randn(1, 5, 8), Measure())
    assert torch.isfinite(out).all()
    assert torch.isfinite(tokens).all()


def test_sums_over_points_are_not_taken_in_half_precision() -> None:
    module = attention().float()
    x = torch.randn(1, 4096, 8)
    with torch.autocast("cpu", torch.bfloat16):
        w = module.slices(module.to_slices(x))
        tokens = module.tokens(w, module.split(module.to_features(x)), Measure())
    assert w.dtype == tokens.dtype == torch.float32


def test_what_cannot_be_built_is_named() -> None:
    with pytest.raises(RecipeError, match="got 8 and 3"):
        PhysicsAttention(8, heads=3, slices=2, axes=None)
    with pytest.raises(UnsupportedDomain, match="got a mesh of 4"):
        PhysicsAttention(8, heads=2, slices=2, axes=4)


def test_bfloat16_tells_apart_what_belongs_to_all_slices_almost_alike() -> None:
    """As points do at the start. Of two points, what they take back differs by little then."""
    torch.manual_seed(0)
    attention = PhysicsAttention(16, heads=2, slices=64, axes=None)
    torch.nn.init.normal_(attention.slice.weight, std=1e-3)
    attention.to_slices, attention.out = EndLinear(16, 16), EndLinear(16, 16)
    x, tokens = torch.randn(1, 30, 16), torch.randn(1, 2, 64, 8)
    with torch.no_grad():
        exact = attention.read(x, tokens)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = attention.read(x, tokens)
    between_points = exact - exact.mean(1, keepdim=True)
    assert float((rounded - exact).norm() / between_points.norm()) < 1e-3


def test_bfloat16_tells_tokens_apart_that_are_nearly_the_same() -> None:
    torch.manual_seed(0)
    attention = PhysicsAttention(16, heads=2, slices=8, axes=None)
    tokens = torch.randn(1, 2, 1, 8) + 1e-3 * torch.randn(1, 2, 8, 8)
    with torch.no_grad():
        exact = attention.attend(tokens)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = attention.attend(tokens)
    assert float((rounded - exact).norm() / exact.norm()) < 1e-5
