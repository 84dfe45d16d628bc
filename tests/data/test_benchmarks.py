from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ono.data.benchmarks import BENCHMARKS, benchmark, split_rows
from ono.data.check import check
from ono.data.generate import make
from ono.data.info import Split
from ono.data.task import resolutions
from ono.errors import InputError

counts = st.fixed_dictionaries(
    {"train": st.integers(1, 2000), "validation": st.integers(1, 500), "test": st.integers(1, 500)}
)


@given(counts, st.integers(3, 5000))
def test_splits_keep_their_proportions(sizes: dict[Split, int], samples: int) -> None:
    rows = split_rows(sizes, samples)
    end, total = 0, sum(sizes.values())
    shares = {name: sizes[name] * samples / total for name in sizes}
    for name, (start, stop) in rows.items():
        assert start == end, "splits lie end to end"
        assert stop > start, "no split is empty"
        end = stop
        if min(shares.values()) >= 1:  # else the smallest is rounded up at the cost of others
            assert abs(stop - start - shares[name]) < 1
    assert end == samples


@given(counts)
def test_splits_are_as_listed_unless_told(sizes: dict[Split, int]) -> None:
    rows = split_rows(sizes)
    assert {name: stop - start for name, (start, stop) in rows.items()} == sizes


def test_fewer_samples_than_splits_are_refused() -> None:
    with pytest.raises(InputError, match=r"samples must be at least 3.*got 2"):
        BENCHMARKS["darcy"].plan("quick", 2, 0)


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(InputError, match="did you mean darcy"):
        benchmark("dracy")
    with pytest.raises(InputError, match="no size 'fulll'; did you mean full"):
        BENCHMARKS["darcy"].plan("fulll", None, 0)


def test_the_registry_does_not_load_torch() -> None:
    code = "import sys, ono.data.benchmarks, ono.data.check; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("size", "nodes", "samples"), [("quick", 85, 800), ("full", 421, 1300)])
def test_darcy_sizes(size: str, nodes: int, samples: int) -> None:
    plan = BENCHMARKS["darcy"].plan(size, None, 0)
    assert plan.info.mesh.shape == (nodes, nodes)
    assert plan.info.samples == samples
    coords = plan.fixed["coords"].reshape(nodes, nodes, 2)
    np.testing.assert_array_equal(coords[0, -1], [0, 1])  # (x_i, y_j): the last index moves y
    np.testing.assert_allclose(coords[3, 5], np.array([3, 5]) / (nodes - 1), rtol=1e-7)


def test_darcy_is_made_and_sound(tmp_path: Path) -> None:
    dataset = make(BENCHMARKS["darcy"], tmp_path / "a", size="quick", samples=8, batch=3)
    assert check(dataset) == []
    assert dataset.info.report is not None
    assert max(dataset.info.report.residual) <= 1e-9
    assert set(np.unique(dataset.inputs)) == {3.0, 12.0}
    fields = dataset.outputs.reshape(8, 85, 85)
    assert (fields[:, [0, -1]] == 0).all()
    assert (fields[:, 1:-1, 1:-1] > 0).all()
    one = make(BENCHMARKS["darcy"], tmp_path / "b", size="quick", samples=8, batch=8)
    assert one.info.files["inputs"].sha256 == dataset.info.files["inputs"].sha256
    np.testing.assert_allclose(one.outputs, dataset.outputs, rtol=1e-5, atol=1e-9)


def test_elasticity_is_made_and_sound(tmp_path: Path) -> None:
    dataset = make(BENCHMARKS["elasticity"], tmp_path / "a", size="quick", samples=6, batch=4)
    assert [finding for finding in check(dataset) if finding.severity == "fatal"] == []
    assert dataset.info.report is not None
    assert max(dataset.info.report.residual) <= 1e-9
    assert dataset.coords.shape == (6, 972, 2)
    assert dataset.inputs.shape == (6, 972, 0)
    assert (dataset.outputs > 0).all()
    assert dataset.arrays["draws"].shape == (6, 10)
    distance = np.linalg.norm(dataset.coords - 0.5, axis=-1)
    assert distance.min() > 0.2  # outside every void
    one = make(BENCHMARKS["elasticity"], tmp_path / "b", size="quick", samples=6, batch=1)
    assert one.info.files["draws"].sha256 == dataset.info.files["draws"].sha256
    np.testing.assert_allclose(one.outputs, dataset.outputs, rtol=1e-5)


def test_ns2d_is_made_and_sound(tmp_path: Path) -> None:
    dataset = make(BENCHMARKS["ns2d"], tmp_path / "a", size="quick", samples=4, batch=3)
    assert check(dataset) == []
    assert dataset.info.mesh.periodic
    assert resolutions(dataset)[32] == 2
    assert dataset.outputs.shape == (4, 20, 4096, 1)
    assert dataset.times is not None
    np.testing.assert_array_equal(dataset.times, np.arange(1, 21))
    means = np.abs(dataset.outputs).mean((0, 2, 3))
    assert 0.15 < means[0] < 0.3  # 0.225 over many samples
    assert 1.2 < means[-1] < 1.9  # 1.56
    assert np.abs(np.asarray(dataset.outputs, np.float64).mean(2)).max() < 1e-5


def test_full_ns2d_is_solved_finely_and_stored_coarsely() -> None:
    plan = BENCHMARKS["ns2d"].plan("full", None, 0)
    assert plan.info.mesh.shape == (64, 64)
    drawn = plan.draw(0, 0)
    assert drawn["vorticity"].shape == (256, 256)
    np.testing.assert_array_equal(drawn["draws"], drawn["vorticity"][::4, ::4].ravel())
    np.testing.assert_allclose(plan.fixed["coords"][1], [0, 1 / 64])
