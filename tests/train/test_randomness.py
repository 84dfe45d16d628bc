"""The random numbers of a run are its own, and go on where they were."""

from __future__ import annotations

import pytest
import torch

from ono.train.randomness import Randomness

CPU = torch.device("cpu")


def test_a_seed_gives_the_same_numbers_and_leaves_the_others_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    drawn = []
    for seed in (1, 1, 2):
        with Randomness(seed, CPU).in_use():
            drawn.append(torch.rand(3))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.rand(3), expected)


def test_the_numbers_outside_come_back_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="negative"), Randomness(1, CPU).in_use():
        torch.rand(-1)
    assert torch.equal(torch.get_rng_state(), before)


def test_restored_numbers_go_on_where_they_were() -> None:
    whole, again = Randomness(1, CPU), Randomness(2, CPU)
    with whole.in_use():
        torch.rand(5)
        state = whole.state()
        expected = torch.rand(5)
    again.restore(state)
    with again.in_use():
        assert torch.equal(torch.rand(5), expected)
        assert torch.equal(again.state()["device_rng"], state["device_rng"])
