"""The pseudo-inverse of Nyström attention and its gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ono.nn.pseudo_inverse import pseudo_inverse


def between_landmarks(count: int = 30, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 2, 3, count, 8, dtype=torch.float64, generator=generator)
    between: Tensor = (2 * q @ k.mT).softmax(-1)
    return between


def test_pseudo_inverse_scales_each_matrix_by_itself() -> None:
    matrices = torch.rand(2, 6, 6, dtype=torch.float64).softmax(-1) + torch.eye(6).double()
    alone = pseudo_inverse(matrices[:1], 8)
    together = pseudo_inverse(torch.cat((matrices[:1], 1e3 * matrices[1:])), 8)
    assert torch.equal(alone, together[:1])
    assert torch.allclose(alone @ matrices[:1], torch.eye(6).double(), atol=1e-6)


def test_many_iterations_invert() -> None:
    matrix = between_landmarks(12)
    found = pseudo_inverse(matrix, 40)
    assert torch.allclose(found, torch.linalg.pinv(matrix), rtol=1e-8, atol=1e-8)


def test_the_gradient_is_that_of_the_iteration() -> None:
    logits = between_landmarks(5)[0].log().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: pseudo_inverse(x.softmax(-1), 4), (logits,))


def test_zeros_around_a_matrix_change_nothing() -> None:
    """On a GPU matrices are filled up so."""
    matrix = between_landmarks(13)
    padded = pseudo_inverse(F.pad(matrix, (0, 3, 0, 3)), 6)
    assert torch.allclose(padded[..., :13, :13], pseudo_inverse(matrix, 6), rtol=1e-12)
    assert not padded[..., 13:, :].any()
    assert not padded[..., 13:].any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same() -> None:
    matrix = between_landmarks(61)
    found = pseudo_inverse(matrix.cuda(), 6)
    assert found.shape == matrix.shape
    assert torch.allclose(found.cpu(), pseudo_inverse(matrix, 6), rtol=1e-8, atol=1e-8)
