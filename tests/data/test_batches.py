"""From files to batches: strides, ragged samples, weights, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ono.data.batches import Resident, Streamed, epoch_order, in_order, load
from ono.data.normalise import Normaliser
from ono.data.store import (
    Array,
    ArrayName,
    Channel,
    Dataset,
    Info,
    Mesh,
    Provenance,
    Task,
    write_dataset,
)
from ono.data.task import resolutions, stride_for
from ono.data.view import View, Window, real_points
from ono.domain import trapezoidal
from ono.errors import DataError

RNG = np.random.default_rng(0)
CPU = torch.device("cpu")


def store(path: Path, mesh: Mesh, arrays: dict[ArrayName, Array], **changes: Any) -> Dataset:
    content: dict[str, Any] = {
        "name": "case",
        "task": "steady",
        "mesh": mesh,
        "inputs": (Channel(name="a"),),
        "outputs": (Channel(name="u"),),
        "samples": 6,
        "splits": {"train": (0, 4), "validation": (4, 5), "test": (5, 6)},
        "provenance": Provenance(maker="test"),
    }
    return write_dataset(path, Info.model_validate(content | changes), arrays)


def grid(path: Path, shape: tuple[int, ...] = (9, 5), **extra: Array) -> Dataset:
    axes = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij")
    coords = np.stack(axes, -1).reshape(-1, len(shape)).astype(np.float32)
    fields = RNG.random((2, 6, len(coords), 1), np.float32)
    arrays: dict[ArrayName, Array] = {
        "coords": coords,
        "inputs": fields[0],
        "outputs": fields[1],
        **extra,  # type: ignore[dict-item]
    }
    return store(path, Mesh(kind="grid", dim=len(shape), shape=shape, shared=True), arrays)


def ragged(path: Path) -> Dataset:
    counts = np.array([3, 7, 5, 4, 6, 2])
    total = int(counts.sum())
    arrays: dict[ArrayName, Array] = {
        "coords": RNG.random((total, 2), np.float32),
        "inputs": RNG.random((total, 1), np.float32),
        "outputs": RNG.random((total, 1), np.float32),
        "weights": RNG.random(total, np.float32),
        "params": RNG.random((6, 2), np.float32),
        "offsets": np.concatenate(([0], counts.cumsum())).astype(np.int64),
    }
    params = (Channel(name="load"), Channel(name="speed"))
    return store(path, Mesh(kind="cloud", dim=2, shared=False), arrays, params=params)


def test_a_stride_takes_every_nth_node_of_every_axis(tmp_path: Path) -> None:
    data = grid(tmp_path)
    batch = View(data, data.rows("train"), 2).read(np.array([1, 3]))
    assert batch.domain.shape == (5, 3)
    expected = np.array(data.inputs).reshape(6, 9, 5)[[1, 3], ::2, ::2].reshape(2, -1, 1)
    np.testing.assert_array_equal(batch.values.numpy(), expected)
    np.testing.assert_allclose(batch.domain.coords[0, :3, 1], [0, 0.5, 1])
    assert batch.domain.weights is not None
    assert torch.equal(batch.domain.weights[0], trapezoidal((5, 3)))


def test_resolutions_keep_both_ends_of_every_axis(tmp_path: Path) -> None:
    data = grid(tmp_path)
    assert resolutions(data) == {9: 1, 5: 2}
    assert stride_for(data, 5) == 2
    with pytest.raises(DataError, match="no resolution 7; its grid 9x5 contains 9, 5"):
        stride_for(data, 7)


def test_weights_of_a_dataset_are_made_to_sum_to_one(tmp_path: Path) -> None:
    data = grid(tmp_path, weights=np.arange(1, 46, dtype=np.float32))
    weights = View(data, data.rows("train")).read(np.array([0, 1])).domain.weights
    assert weights is not None
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(weights[1, 4] / weights[1, 0], 5, rtol=1e-6)


def test_trapezoidal_weights_integrate_linear_functions_exactly() -> None:
    weights = trapezoidal((5, 4, 3)).double()
    axes = torch.meshgrid(*(torch.linspace(0, 1, n) for n in (5, 4, 3)), indexing="ij")
    linear = (1 + 2 * axes[0] - 3 * axes[1] + axes[2]).flatten().double()
    assert float(weights @ linear) == pytest.approx(1 + 1 - 1.5 + 0.5, rel=1e-6)


def test_ragged_samples_are_padded_and_masked(tmp_path: Path) -> None:
    data = ragged(tmp_path)
    batch = View(data, data.rows("train")).read(np.array([0, 1]))
    domain = batch.domain
    assert domain.mask is not None
    assert domain.weights is not None
    assert domain.mask.sum(-1).tolist() == [3, 7]
    np.testing.assert_array_equal(domain.coords[0, :3], data.coords[:3])
    np.testing.assert_array_equal(domain.coords[1], data.coords[3:10])
    np.testing.assert_allclose(domain.weights.sum(-1), 1, rtol=1e-6)
    assert data.params is not None
    np.testing.assert_array_equal(batch.values[1, 4, 1:], data.params[1])
    with pytest.raises(DataError, match="no stride"):
        View(data, data.rows("train"), 2)


@pytest.mark.parametrize("make", [grid, ragged])
def test_resident_and_streamed_batches_are_equal(make: Any, tmp_path: Path) -> None:
    view = View(data := make(tmp_path), data.rows("train"))
    order = epoch_order(0, 0, 4)
    resident = list(Resident(view, CPU).batches(order, 3))
    streamed = list(Streamed(view, CPU).batches(order, 3))
    assert [len(batch.rows) for batch in resident] == [3, 1]
    for kept, read in zip(resident, streamed, strict=True):
        points = read.values.shape[1]
        assert torch.equal(kept.rows, read.rows)
        mask = read.domain.mask
        real = torch.ones_like(read.values[..., 0], dtype=torch.bool) if mask is None else mask
        assert torch.equal(kept.values[:, :points][real], read.values[real])
        assert torch.equal(kept.target[:, :points][real], read.target[real])
        assert torch.equal(kept.domain.coords[:, :points][real], read.domain.coords[real])


def test_every_sample_comes_once_an_epoch(tmp_path: Path) -> None:
    data = grid(tmp_path)
    source = load(View(data, data.rows("train")), CPU)
    seen = [int(row) for batch in source.batches(epoch_order(3, 7, 4), 3) for row in batch.rows]
    assert sorted(seen) == [0, 1, 2, 3]
    assert [int(r) for batch in in_order(source, 3) for r in batch.rows] == [0, 1, 2, 3]


def test_normaliser_sees_training_rows_and_real_points_only(tmp_path: Path) -> None:
    data = ragged(tmp_path)
    view = View(data, data.rows("train"))
    normaliser = Normaliser(dim=2, in_channels=3, out_channels=1)
    normaliser.fit(Streamed(view, CPU).batches(np.arange(4), 3))
    train = np.array(data.outputs[: 3 + 7 + 5 + 4], np.float64)
    assert float(normaliser.output_mean) == pytest.approx(train.mean(), rel=1e-5)
    assert float(normaliser.output_std) == pytest.approx(train.std(), rel=1e-5)
    low = np.array(data.coords[:19]).min(0)
    np.testing.assert_allclose(normaliser.coord_low, low, rtol=1e-6)


def test_standard_coordinates_have_mean_zero_and_deviation_one(tmp_path: Path) -> None:
    data = ragged(tmp_path)
    view = View(data, data.rows("train"))
    normaliser = Normaliser(dim=2, in_channels=3, out_channels=1, coords="standard")
    normaliser.fit(Streamed(view, CPU).batches(np.arange(4), 3))
    placed = []
    for batch in Streamed(view, CPU).batches(np.arange(4), 3):
        domain = normaliser.place(batch.domain)
        placed.append(real_points(domain.coords, domain.mask))
    every = torch.cat(placed).double()
    torch.testing.assert_close(every.mean(0), torch.zeros(2).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(every.std(0, correction=0), torch.ones(2).double())


def test_a_constant_channel_keeps_its_scale(tmp_path: Path) -> None:
    data = grid(tmp_path, inputs=np.full((6, 45, 1), 7.0, np.float32))
    normaliser = Normaliser(dim=2, in_channels=1, out_channels=1)
    view = View(data, data.rows("train"))
    normaliser.fit(Streamed(view, CPU).batches(np.arange(4), 4))
    encoded = normaliser.encode(view.read(np.array([0])).values)
    assert torch.equal(encoded, torch.zeros_like(encoded))


def series(tmp_path: Path, task: Task, frames: int = 5) -> Dataset:
    """Store the grid with outputs that grow by one from frame to frame, and a second channel."""
    data = grid(tmp_path)
    field = np.concatenate((data.outputs, -np.array(data.outputs)), -1)
    steps = np.arange(frames, dtype=np.float32)
    arrays: dict[ArrayName, Array] = {
        "coords": np.array(data.coords),
        "inputs": np.array(data.inputs),
        "outputs": field[:, None] + steps[:, None, None],
        "times": 10 * steps,
    }
    channels = (Channel(name="u"), Channel(name="v"))
    return store(tmp_path / task, data.info.mesh, arrays, task=task, outputs=channels)


def test_a_timed_batch_has_its_times_and_thins_every_frame(tmp_path: Path) -> None:
    data = series(tmp_path, "timed")
    batch = View(data, data.rows("train"), 2).read(np.array([1, 0]))
    shape, stored = data.info.mesh.shape or (), np.array(data.outputs)[[1, 0]]
    expected = stored.reshape(2, 5, *shape, 2)[:, :, ::2, ::2].reshape(2, 5, -1, 2)
    assert batch.times is not None
    assert batch.times.tolist() == [0, 10, 20, 30, 40]
    assert batch.target.numpy() == pytest.approx(expected)
    assert batch.history is None


def test_times_are_free_in_timed_tasks_only(tmp_path: Path) -> None:
    steady = grid(tmp_path / "steady")
    timed, rollout = (series(tmp_path / f"{task} series", task) for task in ("timed", "rollout"))
    assert View(timed, timed.rows("train")).free_times == 5
    assert View(steady, steady.rows("train")).free_times is None
    assert View(rollout, rollout.rows("train"), window=Window(3, 2)).free_times is None


def test_a_rollout_splits_its_frames_and_picks_channels(tmp_path: Path) -> None:
    data = series(tmp_path, "rollout")
    view = View(data, data.rows("train"), window=Window(3, 2), channels=(1,))
    batch = view.read(np.array([0]))
    assert batch.history is not None
    frames = np.concatenate((batch.history, batch.target), 1)
    assert frames == pytest.approx(np.array(data.outputs)[:1, :, :, 1:])
    assert batch.target.shape[1] == 2
    assert batch.times is not None
    assert batch.times.tolist() == [30, 40]
    assert [channel.name for channel in view.outputs] == [data.info.outputs[1].name]


@pytest.mark.parametrize(("task", "window"), [("timed", Window(1, 1)), ("rollout", None)])
def test_a_window_belongs_to_rollouts(tmp_path: Path, task: Task, window: Window | None) -> None:
    data = series(tmp_path, task)
    with pytest.raises(DataError, match=f"is a {task} task"):
        View(data, data.rows("train"), window=window)


@pytest.mark.parametrize("kind", [Resident, Streamed])
def test_gathered_series_equal_what_is_read(
    tmp_path: Path, kind: type[Resident] | type[Streamed]
) -> None:
    data = series(tmp_path, "rollout")
    view = View(data, data.rows("train"), window=Window(2, 3))
    (batch,) = kind(view, CPU).batches(np.array([1, 0]), 2)
    expected = view.read(np.array([1, 0]))
    assert batch.history is not None
    assert expected.history is not None
    assert torch.equal(batch.history, expected.history)
    assert torch.equal(batch.target, expected.target)


def test_weights_of_a_dataset_survive_a_stride(tmp_path: Path) -> None:
    data = grid(tmp_path, weights=np.arange(1, 46, dtype=np.float32))
    weights = View(data, data.rows("train"), 2).read(np.array([0])).domain.weights
    assert weights is not None
    expected = np.arange(1, 46).reshape(9, 5)[::2, ::2].ravel()
    np.testing.assert_allclose(weights[0], expected / expected.sum(), rtol=1e-6)
