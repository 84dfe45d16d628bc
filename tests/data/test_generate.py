from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from ono.data.benchmarks import benchmark
from ono.data.generate import make
from ono.data.info import Array, Channel, Info, Mesh, Provenance
from ono.data.plan import Plan, Rows, Solved
from ono.data.store import Dataset
from ono.errors import DataError, InputError, Interrupted, OnoError, RunInUse

POINTS = 5


@dataclass
class Sums:
    """A maker of running sums that fails, pauses or breaks where it is told to."""

    unsolvable: set[tuple[int, int]] = field(default_factory=set)
    poisoned: set[tuple[int, int]] = field(default_factory=set)
    break_at: int = -1
    error: type[BaseException] = RuntimeError
    pause: float = 0.0
    points: int = POINTS
    name: str = "sums"
    solves: int = 0

    def plan(self, size: str, samples: int | None, seed: int) -> Plan:
        samples = 23 if samples is None else samples

        def draw(index: int, attempt: int) -> Mapping[str, Array]:
            random = np.random.default_rng((seed, index, attempt))
            inputs = random.standard_normal((POINTS, 1)).astype(np.float32)
            if (index, attempt) in self.poisoned:
                inputs[2] = np.nan
            return {"inputs": inputs, "bad": np.array((index, attempt) in self.unsolvable)}

        def solve(batch: Mapping[str, Array], device: str) -> Solved:
            self.solves += 1
            if self.solves == self.break_at:
                raise self.error("told to break")
            time.sleep(self.pause)
            count = len(batch["bad"])
            # As in real solvers, the last digits depend on how many are solved together.
            outputs = np.cumsum(batch["inputs"].astype(np.float64), 1) * (1 + 1e-6 * count)
            return Solved(
                {"outputs": outputs},
                converged=~batch["bad"],
                residual=np.where(batch["bad"], 1e-2, 1e-12),
                iterations=np.full(count, 7),
            )

        info = Info(
            name=self.name,
            task="steady",
            mesh=Mesh(kind="grid", dim=1, shape=(self.points,), shared=True),
            inputs=(Channel(name="a"),),
            outputs=(Channel(name="u"),),
            samples=samples,
            splits={"train": (0, samples - 2), "validation": (samples - 2, samples)},
            provenance=Provenance(maker=self.name, size=size, seed=seed),
        )
        rows = Rows((self.points, 1))
        coords = np.linspace(0, 1, POINTS, dtype=np.float32)[:, None]
        return Plan(info, {"coords": coords}, {"inputs": rows, "outputs": rows}, draw, solve, 4)


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def attempts(dataset: Dataset) -> dict[int, int]:
    assert dataset.info.report is not None
    return {i: a for i, a in enumerate(dataset.info.report.attempt) if a}


def test_a_dataset_is_made(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    dataset = make(
        Sums(),
        tmp_path / "new" / "d",
        size="s",
        progress=lambda done, all_: told.append((done, all_)),
    )
    dataset.verify()
    assert told == [(n, 23) for n in (0, 4, 8, 12, 16, 20, 23)]
    assert sorted(content(dataset.path)) == [
        "coords.npy",
        "dataset.json",
        "inputs.npy",
        "outputs.npy",
    ]
    for i in (0, 11, 22):
        drawn = np.random.default_rng((0, i, 0)).standard_normal((POINTS, 1)).astype(np.float32)
        np.testing.assert_array_equal(dataset.inputs[i], drawn)
        np.testing.assert_allclose(dataset.outputs[i], np.cumsum(drawn, 0), rtol=1e-5)
    assert dataset.info.report is not None
    assert dataset.info.report.iterations == [7] * 23
    assert all(dataset.info.report.converged)


def test_inputs_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    made = [
        content(make(Sums(), tmp_path / str(batch), size="s", batch=batch).path)["inputs.npy"]
        for batch in (1, 3, 23, 100)
    ]
    assert len(set(made)) == 1
    other = content(make(Sums(), tmp_path / "other", size="s", seed=1).path)["inputs.npy"]
    assert other != made[0]


def test_a_broken_run_continues_to_the_same_bytes(tmp_path: Path) -> None:
    whole = make(Sums(unsolvable={(9, 0)}), tmp_path / "whole", size="s")
    maker = Sums(unsolvable={(9, 0)})
    for break_at in (1, 3, 2, 4):  # before anything is stored, later, in a redraw, later
        maker.break_at, maker.solves = break_at, 0
        with pytest.raises(RuntimeError, match="told to break"):
            make(maker, tmp_path / "broken", size="s")
        with pytest.raises(
            DataError,
            match=r"not finished.*ono data make sums --size s --samples 23 --seed 0 --out .*broken",
        ):
            Dataset.open(tmp_path / "broken")
    maker.break_at, maker.solves = -1, 0
    make(maker, tmp_path / "broken", size="s")
    assert maker.solves == 2, "finished chunks were solved again"
    assert content(tmp_path / "broken") == content(whole.path)


def test_ctrl_c_says_how_to_continue(tmp_path: Path) -> None:
    maker = Sums(break_at=3, error=KeyboardInterrupt)
    with pytest.raises(Interrupted, match=r"stopped with 8 of 23 samples.*same command") as caught:
        make(maker, tmp_path / "d", size="s")
    assert caught.value.signal_number == 2


def test_a_chunk_is_recorded_only_after_it_is_written(tmp_path: Path) -> None:
    out = tmp_path / "d"

    def lose_a_file(done: int, _: int) -> None:
        if done == 8:
            (out / "outputs.npy").rename(tmp_path / "outputs.npy")

    with pytest.raises(OnoError, match=r"writing to .*outputs.npy failed: No such file"):
        make(Sums(), out, size="s", progress=lose_a_file)
    (tmp_path / "outputs.npy").rename(out / "outputs.npy")
    done = np.load(out / "making.npy")["done"].tolist()
    # The next chunk is being written when the one before it is told.
    assert done in ([1] * 8 + [0] * 15, [1] * 12 + [0] * 11)
    make(Sums(), out, size="s")
    assert content(out) == content(make(Sums(), tmp_path / "whole", size="s").path)


def test_a_chunk_recorded_in_part_is_done_again(tmp_path: Path) -> None:
    maker = Sums(unsolvable={(i, 0) for i in (8, 9, 10)}, break_at=3)
    with pytest.raises(RuntimeError):
        make(maker, tmp_path / "d", size="s")
    state = np.load(tmp_path / "d" / "making.npy")
    state[8:11] = (1, 1e-12, 7, 1)  # killed while the third chunk was being recorded
    np.save(tmp_path / "d" / "making.npy", state)
    make(maker, tmp_path / "d", size="s")
    whole = make(Sums(unsolvable=maker.unsolvable), tmp_path / "whole", size="s")
    assert content(tmp_path / "d") == content(whole.path)


def test_what_is_solved_when_the_time_is_up_is_kept(tmp_path: Path) -> None:
    """However short the time, every call gets on, and the end is the same."""
    whole = make(Sums(), tmp_path / "whole", size="s")

    def between() -> None:
        raise TimeoutError("the time is up")

    for done in (4, 8, 12):
        maker = Sums()
        with pytest.raises(OnoError, match="the time is up"):
            make(maker, tmp_path / "d", size="s", between=between)
        assert maker.solves == 1, "it went on after the time was up"
        assert np.load(tmp_path / "d" / "making.npy")["done"].sum() == done
    assert content(make(Sums(), tmp_path / "d", size="s").path) == content(whole.path)


@pytest.mark.slow  # samples of the full sizes
@pytest.mark.parametrize("name", ["darcy", "ns2d"])
def test_small_chunks_of_fine_grids_have_the_same_bits(name: str) -> None:
    plan = benchmark(name).plan("full", None, 0)
    drawn = [plan.draw(index, 0) for index in range(2)]
    together = plan.solve({key: np.stack([d[key] for d in drawn]) for key in drawn[0]}, "cpu")
    for index, one in enumerate(drawn):
        alone = plan.solve({key: one[key][None] for key in one}, "cpu")
        for key, array in together.arrays.items():
            np.testing.assert_array_equal(alone.arrays[key][0], array[index])


def start(out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, str(out)])


def wait_for_samples(process: subprocess.Popen[bytes], out: Path, count: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it could be killed"
        if (out / "making.npy").exists() and np.load(out / "making.npy")["done"].sum() >= count:
            return
        time.sleep(0.002)
    raise AssertionError("the process made no progress")


def test_a_killed_process_is_continued_to_the_same_bytes(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    for count in (0, 6, 15):
        process = start(out)
        wait_for_samples(process, out, count)
        process.kill()
        process.wait()
    make(Sums(), out, size="s", batch=2)
    whole = make(Sums(), tmp_path / "whole", size="s", batch=2)
    assert content(out) == content(whole.path)


def test_two_processes_cannot_fill_one_directory(tmp_path: Path) -> None:
    out = tmp_path / "d"
    process = start(out)
    try:
        wait_for_samples(process, out, 1)
        with pytest.raises(RunInUse, match="another process"):
            make(Sums(), out, size="s")
    finally:
        process.kill()
        process.wait()
    assert make(Sums(), out, size="s").info.samples == 23  # a dead process holds no lock


def test_a_finished_dataset_is_returned_as_it_is(tmp_path: Path) -> None:
    make(Sums(), tmp_path, size="s")
    before = content(tmp_path)
    (tmp_path / "making.npy").write_bytes(b"left by a kill at the last moment")
    maker = Sums()
    make(maker, tmp_path, size="s")
    assert maker.solves == 0
    assert content(tmp_path) == before


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("size", "samples", "seed", "maker", "complaint"),
    [
        ("t", 23, 0, "sums", "size 's', not 't'"),
        ("s", 22, 0, "sums", "samples 23, not 22"),
        ("s", 23, 5, "sums", "seed 0, not 5"),
        ("s", 23, 0, "products", "maker 'sums', not 'products'"),
    ],
)
def test_another_request_is_refused(
    tmp_path: Path, finished: bool, size: str, samples: int, seed: int, maker: str, complaint: str
) -> None:
    first = Sums(break_at=-1 if finished else 3)
    if finished:
        make(first, tmp_path, size="s")
    else:
        with pytest.raises(RuntimeError):
            make(first, tmp_path, size="s")
    before = content(tmp_path)
    with pytest.raises(DataError, match=f"{complaint}.*another directory"):
        make(Sums(name=maker), tmp_path, size=size, samples=samples, seed=seed)
    assert content(tmp_path) == before


def test_bad_samples_are_redrawn_and_counted(tmp_path: Path) -> None:
    maker = Sums(unsolvable={(2, 0), (2, 1), (13, 0)}, poisoned={(22, 0)})
    dataset = make(maker, tmp_path / "d", size="s")
    assert attempts(dataset) == {2: 2, 13: 1, 22: 1}
    expected = np.random.default_rng((0, 2, 2)).standard_normal((POINTS, 1)).astype(np.float32)
    np.testing.assert_array_equal(dataset.inputs[2], expected)
    assert np.isfinite(dataset.inputs).all()
    plain = make(Sums(), tmp_path / "plain", size="s")
    good = [i for i in range(23) if i not in (2, 13, 22)]
    np.testing.assert_array_equal(dataset.outputs[good], plain.outputs[good])


def test_too_many_redraws_stop_with_the_reasons(tmp_path: Path) -> None:
    maker = Sums(unsolvable={(i, 0) for i in range(5)}, poisoned={(6, 0)})
    with pytest.raises(OnoError) as caught:
        make(maker, tmp_path / "d", size="s")
    message = str(caught.value)
    assert "6 redraws for 23 samples" in message
    assert "sample 3 attempt 0: residual 1.0e-02 after 7 iterations" in message
    assert "sample 6 attempt 0: values that are not finite" in message
    maker.poisoned.clear()  # five are forgiven; those made before still count
    assert len(attempts(make(maker, tmp_path / "d", size="s"))) == 5


def test_redraws_before_a_kill_still_count(tmp_path: Path) -> None:
    maker = Sums(unsolvable={(i, 0) for i in (0, 1, 2, 8, 9, 10)}, break_at=3)
    with pytest.raises(RuntimeError):
        make(maker, tmp_path / "d", size="s")
    with pytest.raises(OnoError, match="6 redraws for 23 samples"):
        make(maker, tmp_path / "d", size="s")


def test_a_twentieth_may_be_redrawn(tmp_path: Path) -> None:
    fine = Sums(unsolvable={(i, 0) for i in range(0, 20, 2)})
    assert len(attempts(make(fine, tmp_path / "fine", size="s", samples=200))) == 10
    with pytest.raises(OnoError, match="11 redraws for 200 samples"):
        make(Sums(unsolvable={(i, 0) for i in range(11)}), tmp_path / "bad", size="s", samples=200)


def test_no_room_on_the_disk_is_known_before_work_starts(tmp_path: Path) -> None:
    maker = Sums(points=10**14)
    with pytest.raises(OnoError, match=r"23 samples need 1.84e\+07 GB .* GB are free"):
        make(maker, tmp_path / "d", size="s")
    assert maker.solves == 0
    assert not (tmp_path / "d").exists()


def test_a_write_that_fails_is_explained(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        with pytest.raises(
            OnoError, match=r"writing to .*inputs.npy failed: File too large; make room or choose"
        ):
            make(Sums(), tmp_path / "d", size="s")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "d").exists(), "a place where nothing was begun is free"
    whole = make(Sums(), tmp_path / "whole", size="s")
    assert content(make(Sums(), tmp_path / "d", size="s").path) == content(whole.path)


def test_a_file_in_place_of_the_directory_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"cannot write to .*file.*another place"):
            make(Sums(), out, size="s")


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "inputs.npy").write_text("mine")
    with pytest.raises(DataError, match="not empty"):
        make(Sums(), tmp_path, size="s")
    assert (tmp_path / "inputs.npy").read_text() == "mine"


@pytest.mark.parametrize("name", ["making.json", "making.npy", "coords.npy", "outputs.npy"])
def test_a_damaged_unfinished_dataset_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RuntimeError):
        make(Sums(break_at=3), tmp_path, size="s")
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:50])
    with pytest.raises(DataError, match=f"{name} is damaged; remove"):
        make(Sums(), tmp_path, size="s")


@pytest.mark.parametrize(
    ("option", "complaint"),
    [({"batch": 0}, "batch"), ({"seed": -1}, "seed"), ({"device": "gpu"}, "auto, cpu, cuda")],
)
def test_bad_options_are_refused(tmp_path: Path, option: dict[str, int], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make(Sums(), tmp_path / "d", size="s", **option)  # type: ignore[arg-type]
    assert not (tmp_path / "d").exists()


class Waves:
    """A timed maker with its own mesh and parameters for each sample."""

    name = "waves"

    def plan(self, size: str, samples: int | None, seed: int) -> Plan:
        def draw(index: int, attempt: int) -> Mapping[str, Array]:
            random = np.random.default_rng((seed, index, attempt))
            return {"params": random.random(2), "inputs": random.random((6, 1))}

        def solve(batch: Mapping[str, Array], device: str) -> Solved:
            coords = batch["params"][:, None, :] * np.ones((6, 1))
            outputs = np.arange(3)[:, None, None] * coords[:, None, :, :1]
            zeros = np.zeros(len(coords))
            return Solved({"coords": coords, "outputs": outputs}, zeros == 0, zeros, zeros)

        info = Info(
            name="waves",
            task="timed",
            mesh=Mesh(kind="structured", dim=2, shape=(3, 2), shared=False),
            inputs=(Channel(name="a"),),
            outputs=(Channel(name="u"),),
            params=(Channel(name="p"), Channel(name="q")),
            samples=4,
            splits={"train": (0, 4)},
            provenance=Provenance(maker="waves", size=size, seed=seed),
        )
        filled = {
            "coords": Rows((6, 2)),
            "inputs": Rows((6, 1)),
            "params": Rows((2,), "<f8"),
            "outputs": Rows((3, 6, 1)),
        }
        return Plan(info, {"times": np.arange(3.0)}, filled, draw, solve)  # type: ignore[arg-type]


def test_own_meshes_times_and_parameters_fit_the_same_machinery(tmp_path: Path) -> None:
    dataset = make(Waves(), tmp_path, size="s")
    assert dataset.outputs.shape == (4, 3, 6, 1)
    assert dataset.params is not None
    expected = np.broadcast_to(dataset.params[:, None], (4, 6, 2)).astype(np.float32)
    np.testing.assert_array_equal(dataset.coords, expected)


if __name__ == "__main__":
    make(Sums(pause=0.02), Path(sys.argv[1]), size="s", batch=2)
