"""The pipe benchmark as a dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ono.data.benchmarks import BENCHMARKS
from ono.data.check import check
from ono.data.generate import make


@pytest.mark.parametrize(("size", "nodes", "samples"), [("quick", 33, 200), ("full", 129, 1300)])
def test_pipe_sizes(size: str, nodes: int, samples: int) -> None:
    plan = BENCHMARKS["pipe"].plan(size, None, 0)
    assert plan.info.samples == samples
    assert plan.info.mesh.shape == (nodes, nodes)
    assert not plan.info.mesh.shared
    assert ("coarser problem" in plan.info.provenance.note) == (size == "quick")


def test_pipe_is_made_and_sound(tmp_path: Path) -> None:
    dataset = make(BENCHMARKS["pipe"], tmp_path / "a", size="quick", samples=5, batch=3)
    assert [finding for finding in check(dataset) if finding.severity == "fatal"] == []
    assert dataset.info.report is not None
    assert max(dataset.info.report.residual) <= 1e-9
    assert dataset.inputs.shape == (5, 33 * 33, 0)
    assert dataset.arrays["draws"].shape == (5, 9)
    assert dataset.coords.dtype == dataset.outputs.dtype == np.float32
    coords = dataset.coords.reshape(5, 33, 33, 2)
    outputs = dataset.outputs.reshape(5, 33, 33, 3)
    assert (coords[:, 0, :, 0] == 0).all()  # the first index runs along the pipe
    np.testing.assert_allclose(coords[:, -1, :, 0], 10)
    np.testing.assert_allclose(np.diff(coords[..., 1], axis=2), 1 / 32, rtol=1e-4)
    offsets = np.asarray(dataset.arrays["draws"])[:, :4]
    np.testing.assert_allclose(coords[:, 8::8, 16, 1], offsets, atol=1e-6)
    t = np.linspace(0, 1, 33)
    np.testing.assert_allclose(outputs[:, 0, :, 0], np.tile(t * (1 - t), (5, 1)), atol=1e-7)
    assert (outputs[:, :, [0, -1], :2] == 0).all()
    drop = outputs[:, 0, :, 2].mean(1) - outputs[:, -1, :, 2].mean(1)
    assert (drop > 0.1).all()  # a straight pipe needs 0.1, and a bent one more

    one = make(BENCHMARKS["pipe"], tmp_path / "b", size="quick", samples=5, batch=1)
    assert one.info.files["draws"].sha256 == dataset.info.files["draws"].sha256
    np.testing.assert_allclose(one.outputs, dataset.outputs, rtol=1e-5, atol=1e-7)
