"""Defects of a mesh: cells without size, points that coincide, values in another point order."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
from scipy.spatial import cKDTree

from ono.data.finding import Finding, Severity, in_samples
from ono.data.info import Array, ArrayName
from ono.data.store import Dataset

_LOOKED_AT = 4
_ROUGHER = 1.5
_NEIGHBOURS_DIFFER, _STORED_NEXT_DIFFER = 0.8, 0.4


def geometry(dataset: Dataset) -> list[Finding]:
    """Find meshes without extent, cells that are empty or folded over, points that coincide.

    On a structured mesh only neighbours count: a cut is two lines of nodes at one place.
    """
    mesh, faults = dataset.info.mesh, defaultdict[str, list[int]](list)
    amounts: dict[str, int] = defaultdict(int)
    for i in range(1 if mesh.shared else dataset.info.samples):
        points = np.asarray(dataset.of_sample("coords", i), np.float64)
        if len(points) < 2 or not np.isfinite(points).all():
            continue
        if not np.ptp(points, axis=0).any():
            found = {"all points coincide": len(points)}
        elif mesh.shape is None:
            found = {"points coincide with another": _repeated(points)}
        else:
            sizes = cell_sizes(points.reshape(*mesh.shape, -1))
            found = _bad_cells(sizes)
        for what, amount in found.items():
            if amount:
                faults[what].append(i)
                amounts[what] += amount
    findings = []
    for what, at in faults.items():
        fatal = what in ("all points coincide", "cells: all are empty")
        text = what if fatal else f"{amounts[what]} {what}"
        severity: Severity = "fatal" if fatal else "note"
        at = [] if mesh.shared else at
        finding = in_samples(severity, text, "coords", at)
        findings.append(finding if at else Finding(severity, text, "coords"))
    return findings


def cell_sizes(nodes: Array) -> Array:
    """Return length, area or volume of the cells of a structured mesh [*shape dim].

    They are signed where the mesh fills its space: a cell that is folded over has another sign.

    >>> square = np.stack(np.meshgrid([0.0, 1, 3], [0.0, 2], indexing="ij"), -1)
    >>> cell_sizes(square).ravel()
    array([2., 4.])
    """
    shape, dim = nodes.shape[:-1], nodes.shape[-1]
    long = [axis for axis, n in enumerate(shape) if n > 1]
    nodes = nodes.reshape(*(shape[axis] for axis in long), dim)
    edges = []
    for axis in range(len(long)):
        edge = np.diff(nodes, axis=axis)
        for other in range(len(long)):
            if other != axis:
                ahead, behind = (
                    np.take(edge, np.arange(start, edge.shape[other] - 1 + start), other)
                    for start in (0, 1)
                )
                edge = (ahead + behind) / 2
        edges.append(edge)
    frame = np.stack(edges, -1)
    if len(long) == dim:
        signed: Array = np.linalg.det(frame)
        return signed
    gram = np.swapaxes(frame, -1, -2) @ frame
    unsigned: Array = np.sqrt(np.maximum(np.linalg.det(gram), 0))
    return unsigned


def point_order(dataset: Dataset) -> list[Finding]:
    """Note values that would be much smoother with their axes, channels or points reordered.

    It looks at a few samples: evidence for a wrong layout, no proof.
    """
    findings = []
    rows = np.unique(np.linspace(0, dataset.info.samples - 1, _LOOKED_AT).astype(int))
    names: tuple[ArrayName, ...] = ("inputs", "outputs")
    for name in names:
        seen: dict[str, list[float]] = defaultdict(list)
        for i in rows:
            values = _frame(dataset, name, int(i))
            points = np.asarray(dataset.of_sample("coords", int(i)), np.float64)
            if not values.size or not np.isfinite(values).all() or not np.isfinite(points).all():
                continue
            for what, ratio in _evidence(values, points, dataset.info.mesh.shape).items():
                seen[what].append(ratio)
        for what, ratios in seen.items():
            if len(ratios) == len(rows):
                text = f"neighbours differ {np.mean(ratios):.1f} times less {what}"
                findings.append(Finding("note", text, name))
    return findings


def _bad_cells(sizes: Array) -> dict[str, int]:
    largest = np.abs(sizes).max(initial=0.0)
    if largest == 0:
        return {"cells: all are empty": sizes.size}
    empty = np.abs(sizes) <= 1e-9 * np.abs(sizes).mean()
    folded = ~empty & (np.sign(sizes) != (1 if (sizes > 0).sum() >= (sizes < 0).sum() else -1))
    return {
        "cells are empty": int(empty.sum()),
        "cells are folded over (negative size)": int(folded.sum()),
    }


def _repeated(points: Array) -> int:
    ordered = points[np.lexsort(points.T)]
    return int((ordered[1:] == ordered[:-1]).all(1).sum())


def _frame(dataset: Dataset, name: ArrayName, index: int) -> Array:
    """Return the values of one sample [points channels], at the middle time."""
    values = dataset.of_sample(name, index)
    if values.ndim == 3:
        time = 1 if dataset.offsets is not None else 0
        values = np.take(values, values.shape[time] // 2, time)
    return np.asarray(values, np.float64)


def _evidence(values: Array, points: Array, shape: tuple[int, ...] | None) -> dict[str, float]:
    """Return what would make neighbours more alike, and how many times."""
    count, channels = values.shape
    evidence: dict[str, float] = {}
    if shape is None:
        if count < 8:
            return {}
        near = np.asarray(cKDTree(points).query(points, k=2)[1])[:, 1]

        def rough(v: Array) -> float:
            return float(np.abs(v - v[near]).mean())

        order = np.random.Generator(np.random.Philox(0)).permutation(count)
        far, following = (
            np.abs(values - values[order]).mean(),
            np.abs(np.diff(values, axis=0)).mean(),
        )
        if rough(values) > _NEIGHBOURS_DIFFER * far and following < _STORED_NEXT_DIFFER * far:
            evidence["in the stored order than over the coords: are both in one order?"] = float(
                rough(values) / max(following, 1e-300)
            )
    else:
        long = [n for n in shape if n > 1]

        def rough(v: Array) -> float:
            return _roughness(v.reshape(*long, -1))

        if len(set(long)) > 1:
            turned = values.reshape(*long[::-1], channels)
            turned = np.moveaxis(turned, range(len(long)), range(len(long))[::-1])
            evidence["with the grid axes reversed: is the layout transposed?"] = _ratio(
                rough(values), _roughness(turned)
            )
    if channels > 1:
        swapped = values.reshape(channels, count).T
        evidence["with channels before points: is the layout transposed?"] = _ratio(
            rough(values), rough(swapped)
        )
    return {
        what: ratio for what, ratio in evidence.items() if ratio > _ROUGHER and math.isfinite(ratio)
    }


def _roughness(grid: Array) -> float:
    """Return the mean difference of neighbours on a grid [*shape channels]."""
    return float(np.mean([np.abs(np.diff(grid, axis=a)).mean() for a in range(grid.ndim - 1)]))


def _ratio(declared: float, other: float) -> float:
    return declared / other if other > 0 else 0.0
