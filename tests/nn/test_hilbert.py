from __future__ import annotations

import pytest
import torch

from ono.domain import Domain
from ono.nn.hilbert import along_hilbert_curve, distance_along


@pytest.mark.parametrize(("dim", "bits"), [(1, 4), (2, 4), (3, 3), (4, 2)])
def test_the_curve_meets_every_cell_once_and_goes_from_neighbour_to_neighbour(
    dim: int, bits: int
) -> None:
    cells = torch.cartesian_prod(*[torch.arange(1 << bits)] * dim).reshape(-1, dim)
    place = distance_along(cells[None], bits)[0]
    order = place.argsort()
    assert torch.equal(place[order], torch.arange(len(cells)))
    steps = cells[order].diff(dim=0).abs().sum(1)
    assert (steps == 1).all()


def test_the_order_does_not_depend_on_units_batch_mates_or_padding() -> None:
    torch.manual_seed(0)
    coords = torch.rand(2, 40, 3)
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[0, 25:] = False
    coords[0, 25:] = 1e3
    order = along_hilbert_curve(Domain(coords, mask=mask))
    alone = along_hilbert_curve(Domain(8 * coords[:1, :25] - 4))
    assert torch.equal(order[:1, :25], alone)
    assert order[0, 25:].tolist() == list(range(25, 40))
    assert torch.equal(order[1:], along_hilbert_curve(Domain(coords[1:])))


def test_points_on_a_line_or_in_one_place_have_an_order() -> None:
    line = torch.stack((torch.linspace(0, 1, 9), torch.full((9,), 2.0)), -1)
    back = along_hilbert_curve(Domain(line.flip(0)[None]))[0].tolist()
    assert sorted(back) == list(range(9))
    assert along_hilbert_curve(Domain(torch.ones(1, 5, 2))).tolist() == [[0, 1, 2, 3, 4]]
