"""DeepONet against its double sum; published sizes, sensors, several outputs, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ono.domain import Domain
from ono.errors import ShapeError, UnsupportedDomain
from ono.models.deeponet import DeepONet
from ono.models.deeponet_config import DeepONetConfig
from ono.problem import Problem

OUTPUTS = ["independent", "split-both", "split-branch", "split-trunk"]


def count(problem: Problem, **options: Any) -> int:
    with torch.device("meta"):
        model = DeepONet(DeepONetConfig.model_validate(options), problem)
    return sum(p.numel() for p in model.parameters())


def build(problem: Problem, **options: Any) -> DeepONet:
    torch.manual_seed(0)
    config = DeepONetConfig.model_validate({"width": 6, "layers": 3, **options})
    model = DeepONet(config, problem).double()
    torch.nn.init.normal_(model.b)
    return model


def problem(points: int = 10, inputs: int = 1, outputs: int = 3, *, timed: bool = False) -> Problem:
    return Problem(2, inputs, outputs, timed, "cloud", None, points)


def case(points: int = 10, inputs: int = 1, batch: int = 2) -> tuple[Domain, Tensor]:
    torch.manual_seed(1)
    coords = torch.rand(batch, points, 2, dtype=torch.float64)
    return Domain(coords), torch.randn(batch, points, inputs, dtype=torch.float64)


def linears(part: nn.Module) -> list[nn.Linear]:
    return [module for module in part.modules() if isinstance(module, nn.Linear)]


def test_published_parameter_counts() -> None:
    assert count(problem(972, inputs=0, outputs=1)) == 1_025_025  # elasticity
    # Darcy on 29 x 29: two convolutions, two dense layers; a trunk of four; a bias.
    branch = (25 + 1) * 64 + (25 * 64 + 1) * 128 + (5 * 5 * 128 + 1) * 128 + 129 * 128
    trunk = 3 * 128 + 3 * 129 * 128
    darcy = Problem.grid((29, 29), in_channels=1, out_channels=1)
    assert count(darcy, branch="conv", width=128, layers=4) == branch + trunk + 1


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_output_is_the_double_sum(outputs: str) -> None:
    model, (domain, values) = build(problem(), outputs=outputs), case()
    out = model(domain, values)
    p = 6
    for sample in range(2):
        f = torch.cat((domain.coords[sample], values[sample]), -1)[None]
        for c in range(3):
            own = c if outputs == "independent" else 0
            first = c * p if outputs in ("split-both", "split-branch") else 0
            start = c * p if outputs in ("split-both", "split-trunk") else 0
            for node in range(10):
                branch, y = model.branches[own](f)[0], domain.coords[sample, node]
                trunk, total = model.trunks[own](y), model.b[c]
                for k in range(p):
                    total = total + branch[first + k] * trunk[start + k]
                assert torch.allclose(out[sample, node, c], total)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_outputs_split_what_they_say(outputs: str) -> None:
    model = build(problem(), outputs=outputs)
    ends = [linears(part)[-1].out_features for part in (model.branches[0], model.trunks[0])]
    expected = {
        "independent": [6, 6],
        "split-both": [18, 18],
        "split-branch": [18, 6],
        "split-trunk": [6, 18],
    }
    assert ends == expected[outputs]
    assert len(model.branches) == len(model.trunks) == (3 if outputs == "independent" else 1)


def test_sensors_tell_their_place_where_geometry_varies() -> None:
    grid = build(Problem.grid((2, 5), in_channels=1, out_channels=1))
    structured = Problem.grid((2, 5), in_channels=1, out_channels=1, kind="structured")
    only_place = build(problem(inputs=0))
    told_both = build(structured)
    read = [linears(m.branches[0])[0].in_features for m in (grid, told_both, only_place)]
    assert read == [10, 30, 20]
    domain, values = case()
    moved = Domain(domain.coords.flip(1))
    assert torch.allclose(grid(domain, values), grid(moved, values).flip(1))
    assert not torch.allclose(told_both(domain, values), told_both(moved, values).flip(1))


def test_queries_are_native_and_exact_in_chunks() -> None:
    model, (domain, values) = build(problem()), case()
    output, terms = model.encode(domain, values)
    assert torch.equal(model(domain, values, query=Domain(domain.coords)), output)
    query = torch.rand(2, 17, 2, dtype=torch.float64)
    whole = model(domain, values, query=Domain(query))
    parts = [model.decode(terms, domain, values, Domain(q)) for q in query.split(5, 1)]
    assert torch.allclose(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_time_is_a_coordinate_of_the_trunk(outputs: str) -> None:
    model, (domain, values) = build(problem(timed=True), outputs=outputs), case()
    times = torch.rand(2, 4, dtype=torch.float64)
    together = model(domain, values, time=times)
    assert together.shape == (2, 4, 10, 3)
    for index in range(4):
        assert torch.allclose(together[:, index], model(domain, values, time=times[:, index]))
    assert not torch.allclose(together[:, 0], together[:, 1])


@pytest.mark.parametrize("shape", [(13,), (14, 21), (13, 15, 17)])
def test_convolutional_branch_reads_one_to_three_axes(shape: tuple[int, ...]) -> None:
    mesh = Problem.grid(shape, in_channels=2, out_channels=1)
    model, points = build(mesh, branch="conv").float(), torch.Size(shape).numel()
    values = torch.randn(2, points, 2)
    assert model(Domain.grid(shape, batch=2), values).shape == (2, points, 1)


def test_hidden_sensors_say_nothing() -> None:
    model, (domain, values) = build(problem()), case()
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[0, 7:] = False
    outs = []
    for rubbish in (0.0, 1e3):
        hidden = Domain(torch.where(mask[..., None], domain.coords, rubbish), mask=mask)
        outs.append(model(hidden, torch.where(mask[..., None], values, rubbish))[mask])
    assert torch.allclose(*outs)


def test_what_it_cannot_read_is_refused() -> None:
    with pytest.raises(UnsupportedDomain, match="different numbers of points; use geo-fno, ono"):
        build(Problem(dim=2, in_channels=1, out_channels=1))
    with pytest.raises(UnsupportedDomain, match="10 scattered points"):
        build(problem(), branch="conv")
    with pytest.raises(UnsupportedDomain, match=r"at least 13 nodes, got \(12, 20\)"):
        build(Problem.grid((12, 20), in_channels=1, out_channels=1), branch="conv")
    with pytest.raises(ShapeError, match="10 fixed sensors, got 12 points"):
        build(problem())(*case(12))
