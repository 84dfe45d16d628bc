from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import typer
from typer.testing import CliRunner

from ono.cli.compare import compare as compare_command
from ono.data.compare import Comparison, Row, compare, radial_spectrum
from ono.data.info import Array, Channel, Info, Mesh, Provenance, Task
from ono.data.marks import marks
from ono.data.store import Dataset, write_dataset


def store(
    path: Path,
    name: str,
    mesh: Mesh,
    coords: Array,
    inputs: dict[str, Array],
    outputs: dict[str, Array],
    *,
    task: Task = "steady",
    **others: Array,
) -> Dataset:
    """Write fields [samples (time) points] by name."""
    samples = len(next(iter(outputs.values())))
    points = coords.shape[-2]
    stacked = np.stack(list(inputs.values()), -1) if inputs else np.zeros((samples, points, 0))
    info = Info(
        name=name,
        task=task,
        mesh=mesh,
        inputs=tuple(Channel(name=key) for key in inputs),
        outputs=tuple(Channel(name=key) for key in outputs),
        samples=samples,
        splits={"train": (0, samples)},
        provenance=Provenance(maker="test"),
    )
    arrays: Any = {
        "coords": coords,
        "inputs": stacked,
        "outputs": np.stack([*outputs.values()], -1),
    }
    return write_dataset(path, info, arrays | others)


def row(found: Comparison, field: str, quantity: str) -> Row:
    return next(row for row in found.fields[field] if row.quantity == quantity)


def test_figures_are_those_of_the_whole_array(tmp_path: Path) -> None:
    _, inputs, outputs = tiny.fields()
    a = tiny.dataset(tmp_path / "a")
    b = tiny.dataset(tmp_path / "b", outputs=3 * outputs + 1000)
    found = compare(a, b)
    whole = np.asarray(3 * outputs + 1000, np.float64)
    name = "outputs.potential"
    assert row(found, name, "mean").b == pytest.approx(whole.mean(), rel=1e-12)
    assert row(found, name, "std").b == pytest.approx(whole.std(), rel=1e-9)
    assert row(found, name, "std").ratio == pytest.approx(3, rel=1e-4)
    assert row(found, name, "min").b == whole.min()
    assert row(found, name, "max").b == whole.max()
    assert row(found, name, "points").a == 81
    means, highs = whole.mean((1, 2)), whole.max((1, 2))
    assert row(found, name, "sample mean, 5%").b == pytest.approx(np.quantile(means, 0.05))
    assert row(found, name, "sample max, 95%").b == pytest.approx(np.quantile(highs, 0.95))
    assert row(found, "inputs.source", "mean").a == pytest.approx(inputs.mean(), abs=1e-6)
    assert row(found, "coords.x", "std").a == pytest.approx(np.linspace(0, 1, 9).std(), rel=1e-6)
    shares = [r.a for r in found.fields[name] if r.quantity.startswith("power")]
    assert 0.99 < sum(shares) <= 1
    assert found.marks == []
    assert found.only_a + found.only_b == []


def test_fields_of_one_side_are_listed(tmp_path: Path) -> None:
    line = np.linspace(0, 1, 5)[:, None]
    mesh = Mesh(kind="grid", dim=1, shape=(5,), shared=True)
    u = np.random.default_rng(0).random((3, 5))
    a = store(tmp_path / "a", "x", mesh, line, {"f": u}, {"u": u, "v": u})
    ragged = Info(
        name="x",
        task="steady",
        mesh=Mesh(kind="cloud", dim=1, shared=False),
        outputs=(Channel(name="u"), Channel(name="w")),
        samples=2,
        splits={"train": (0, 2)},
        provenance=Provenance(maker="test"),
    )
    values = np.arange(14.0).reshape(7, 2)
    b = write_dataset(
        tmp_path / "b",
        ragged,
        {
            "coords": values[:, :1],
            "inputs": np.zeros((7, 0)),
            "outputs": values,
            "offsets": np.array([0, 2, 7]),
        },
    )
    found = compare(a, b)
    assert list(found.fields) == ["coords.x", "outputs.u"]
    assert found.only_a == ["inputs.f", "outputs.v"]
    assert found.only_b == ["outputs.w"]
    assert row(found, "outputs.u", "points").b == 3.5
    assert row(found, "outputs.u", "mean").b == values[:, 0].mean()
    assert row(found, "outputs.u", "sample max, 50%").b == pytest.approx((2 + 12) / 2)


def test_spectrum_fades_the_edges_of_what_does_not_repeat() -> None:
    x = np.linspace(0, 1, 64)
    ramp = x[:, None] + 0 * x
    faded = dict(radial_spectrum(ramp, periodic=False))
    hard = dict(radial_spectrum(ramp, periodic=True))
    assert list(faded) == [f"power at {2**k}-{2 ** (k + 1)}" for k in range(5)]
    assert faded["power at 16-32"] < 1e-4 < 1e-2 < hard["power at 16-32"]


def test_a_constant_field_has_no_spectrum_and_no_ratio(tmp_path: Path) -> None:
    flat = np.zeros((20, 81, 1), np.float32)
    found = compare(tiny.dataset(tmp_path / "a", inputs=flat), tiny.dataset(tmp_path / "b"))
    assert math.isnan(row(found, "inputs.source", "mean").ratio)
    assert row(found, "inputs.source", "power at 1-2").a == 0


def grid(*sizes: int) -> Array:
    return np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), -1).astype(float)


def test_marks_of_darcy(tmp_path: Path) -> None:
    u = np.full((2, 9, 9), 0.5)
    u[:, 1:-1, 1:-1] = 2
    a = np.where(np.arange(81) % 3 == 0, 12, 3) * np.ones((2, 1))
    mesh = Mesh(kind="grid", dim=2, shape=(9, 9), shared=True)
    fields = {"permeability": a}, {"pressure": u.reshape(2, -1)}
    found = marks(store(tmp_path, "darcy", mesh, grid(9, 9).reshape(-1, 2), *fields))
    assert list(found.values()) == pytest.approx([2, 0.5, 1 / 3])


def test_marks_of_a_flow_on_the_torus(tmp_path: Path) -> None:
    frames = np.ones((3, 20, 16)) * np.arange(1, 21)[:, None] * np.array([-1, 1] * 8)
    mesh = Mesh(kind="grid", dim=2, shape=(4, 4), shared=True, periodic=True)
    dataset = store(
        tmp_path,
        "ns2d",
        mesh,
        grid(4, 4).reshape(-1, 2) / 4,
        {},
        {"vorticity": frames},
        task="rollout",
        times=np.arange(1.0, 21),
    )
    expected = {f"mean |vorticity| of frame {k}": float(k) for k in (1, 10, 20)}
    assert marks(dataset) == expected


def test_marks_of_an_airfoil(tmp_path: Path) -> None:
    """A circle with a straight wake: along the wall the flow is tangent, plus 0.1 across it."""
    angle = np.linspace(0, 2 * np.pi, 401)
    wall = np.stack((np.cos(angle), np.sin(angle)), -1)
    wake = np.stack((np.linspace(3, 1.1, 20), np.zeros(20)), -1)
    line = np.concatenate((wake, wall, wake[::-1]))
    coords = np.stack((line, 2 * line), 1)  # [i j 2]
    normal = line / np.linalg.norm(line, axis=1, keepdims=True)
    tangent = np.stack((-normal[:, 1], normal[:, 0]), -1)
    speed = np.repeat((tangent + 0.1 * normal)[:, None], 2, 1).reshape(-1, 2)
    ones = np.ones((1, len(speed)))
    mach = np.where(np.arange(len(speed)) % 4 == 0, 1.5, 0.5)[None]
    outputs = {"density": ones, "velocity x": speed[None, :, 0], "velocity y": speed[None, :, 1]}
    outputs |= {"pressure": ones, "Mach": mach}
    mesh = Mesh(kind="structured", dim=2, shape=(441, 2), shared=False)
    found = marks(store(tmp_path, "airfoil", mesh, coords.reshape(1, -1, 2), {}, outputs))
    assert found["mean |wall-normal speed|"] == pytest.approx(0.1, abs=2e-3)
    assert found["share of nodes with Mach > 1"] == pytest.approx(0.25, abs=1e-3)
    assert found["std of p / rho^1.4"] == 0
    own = np.sqrt(1.01 / 1.4)
    assert found["greatest |Mach - speed / sound|"] == pytest.approx(1.5 - own)


def test_marks_of_a_pipe(tmp_path: Path) -> None:
    nodes = grid(33, 65)
    x, t = nodes[..., 0] / 32 * 10, nodes[..., 1] / 64
    y = t - 0.5 + 0.1 * x
    u = t * (1 - t)  # 0.25 * 4 t (1 - t): flux 1/6
    zero = np.zeros((1, 33 * 65))
    outputs = {"velocity x": u.reshape(1, -1), "velocity y": zero, "pressure": zero}
    mesh = Mesh(kind="structured", dim=2, shape=(33, 65), shared=False)
    coords = np.stack((x, y), -1).reshape(1, -1, 2)
    found = marks(store(tmp_path, "pipe", mesh, coords, {}, outputs))
    assert found["inlet: greatest velocity x"] == pytest.approx(0.25)
    for place in ("at the inlet", "half way", "at the outlet"):
        assert found[f"flux {place}"] == pytest.approx(1 / 6, rel=1e-3)
    centres = [found[f"greatest |centre| at x = {x}"] for x in ("2.5", "5", "7.5", "10")]
    assert centres == pytest.approx([0.25, 0.5, 0.75, 1])


def test_marks_of_elasticity(tmp_path: Path) -> None:
    points = np.array([[[0.1, 0.5], [0.5, 0.7]], [[0.5, 0.95], [0.3, 0.3]]])
    mesh = Mesh(kind="cloud", dim=2, shared=False)
    stress = {"von Mises stress": np.ones((2, 2))}
    theta = np.full((2, 10), 16.0)
    found = marks(store(tmp_path, "elasticity", mesh, points, {}, stress, draws=theta))
    assert found["least distance from an edge"] == pytest.approx(0.05)
    assert found["RMS of theta"] == 16


def test_marks_of_plasticity_tell_a_mirrored_die(tmp_path: Path) -> None:
    """The block is squeezed by a fifth and spreads by a tenth; its top takes the die's shape."""
    shape, times = (11, 4), np.arange(20) / 10
    start = grid(*shape) * -0.5
    i = np.arange(11.0)[:, None] * np.ones(4)
    die = (i / 10) ** 2
    share = (times / times[-1])[:, None, None]
    ux = 0.1 * start[..., 0] * share
    uy = -0.2 * start[..., 1] * share
    uy = uy + np.where(np.arange(4) == 0, 0.1 * die - 0.2, 0) * share
    fields = {"x": start[..., 0] + ux, "y": start[..., 1] + uy}
    fields |= {"displacement x": ux, "displacement y": uy}
    outputs = {name: values.reshape(1, 20, -1) for name, values in fields.items()}
    mesh = Mesh(kind="structured", dim=2, shape=shape, shared=True)
    dataset = store(
        tmp_path,
        "plasticity",
        mesh,
        start.reshape(-1, 2),
        {"die height": die.reshape(1, -1)},
        outputs,
        task="timed",
        times=times,
    )
    found = marks(dataset)
    assert found["area ratio, median"] == pytest.approx(1.1 * 0.8)
    assert found["final bottom width"] == pytest.approx(5 * 1.1)
    assert found["deepest displacement per frame"] == pytest.approx(0.2 / 19)
    assert found["die against final surface"] == pytest.approx(1)
    assert found["mirrored die against surface"] < 0
    steps = np.diff(outputs["displacement x"], axis=1).std()
    assert found["std of a frame's step in x"] == pytest.approx(steps)


def test_a_namesake_with_other_channels_has_no_marks(tmp_path: Path) -> None:
    mesh = Mesh(kind="cloud", dim=2, shared=True)
    values = {"stress": np.ones((2, 4)), "strain": np.ones((2, 4))}
    assert marks(store(tmp_path, "elasticity", mesh, np.ones((4, 2)), {}, values)) == {}


def test_the_command_prints_both_sides(tmp_path: Path) -> None:
    tiny.dataset(tmp_path / "a")
    tiny.dataset(tmp_path / "b", outputs=2 * tiny.fields()[2])
    app = typer.Typer()
    app.command()(compare_command)
    result = CliRunner().invoke(app, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if "std" in line]
    assert len(lines) == 4  # x, y, source, potential
    assert lines[-1].replace("│", " ").split()[-1] == "2"
