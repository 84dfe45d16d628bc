from __future__ import annotations

import torch

from ono.nn.embedding import TimeEmbedding


def test_scaled_times_can_be_told_apart() -> None:
    torch.manual_seed(0)
    times = torch.linspace(0, 1, 20)
    waves = {}
    for scale in (1.0, 100.0):
        embedding = TimeEmbedding(32, scale)
        angles = times[:, None] * embedding.frequencies
        waves[scale] = torch.cat((angles.cos(), angles.sin()), -1)
        assert embedding(times).shape == (20, 32)
    spread = {s: torch.pdist(w).min() for s, w in waves.items()}
    assert spread[100.0] > 5 * spread[1.0]
