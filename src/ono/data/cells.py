"""The sizes of mesh cells, and what they are worth to the points at their corners."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ono.data.info import Array

CORNERS = {
    "line": 2,
    "triangle": 3,
    "quad": 4,
    "polygon": 0,
    "tetra": 4,
    "pyramid": 5,
    "wedge": 6,
    "hexahedron": 8,
}
"""Corner nodes by the family of a cell; further nodes are those of a higher order."""

DIMENSION = {"vertex": 0, "line": 1, "triangle": 2, "quad": 2, "polygon": 2}
TETRAHEDRA = {
    "tetra": ((0, 1, 2, 3),),
    "pyramid": ((0, 1, 2, 4), (0, 2, 3, 4)),
    "wedge": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5)),
    "hexahedron": (
        (0, 1, 2, 6),
        (0, 2, 3, 6),
        (0, 3, 7, 6),
        (0, 7, 4, 6),
        (0, 4, 5, 6),
        (0, 5, 1, 6),
    ),
}


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of one type: nodes [cells corners], and the block of the file they came from."""

    kind: str
    nodes: Array
    block: int

    @property
    def family(self) -> str:
        """The type without its order: `triangle6` is a triangle."""
        return re.sub(r"\d+$", "", self.kind)

    @property
    def dimension(self) -> int:
        """How many directions a cell extends in."""
        return DIMENSION.get(self.family, 3)


def largest(blocks: Sequence[Cells]) -> list[Cells]:
    """Return the cells that fill the mesh: not the lines around faces, nor the faces of solids."""
    top = max((block.dimension for block in blocks), default=0)
    return [block for block in blocks if block.dimension == top > 0]


def measures(cells: Cells, points: Array) -> Array | None:
    """Return length, area or volume of each cell, or None for a type that is not known.

    A face is measured by half the sum of the cross products of its fan of triangles, a solid by
    its tetrahedra; nodes on edges are ignored, so curved cells count as straight.

    >>> square = np.array([[0, 0], [2, 0], [2, 3], [0, 3.0]])
    >>> measures(Cells("quad", np.array([[0, 1, 2, 3]]), 0), square)
    array([6.])
    """
    if cells.family not in CORNERS:
        return None
    space = np.zeros((len(points), 3))
    space[:, : points.shape[1]] = points
    corners = space[cells.nodes[:, : CORNERS[cells.family] or None]]
    if cells.dimension == 1:
        length: Array = np.linalg.norm(corners[:, 1] - corners[:, 0], axis=-1)
        return length
    if cells.dimension == 2:
        spokes = corners[:, 1:] - corners[:, :1]
        areas = np.cross(spokes[:, :-1], spokes[:, 1:]).sum(1) / 2
        area: Array = np.linalg.norm(areas, axis=-1)
        return area
    total = np.zeros(len(corners))
    for a, b, c, d in TETRAHEDRA[cells.family]:
        edges = corners[:, [b, c, d]] - corners[:, [a]]
        total += np.abs(np.linalg.det(edges)) / 6
    return total


def lumped_weights(blocks: Sequence[Cells], points: Array) -> Array | None:
    """Return quadrature weights of the points that sum to one: each cell shared by its nodes.

    None where there are no cells, or some of a type that is not known.
    """
    weights = np.zeros(len(points))
    for block in largest(blocks):
        sizes = measures(block, points)
        if sizes is None:
            return None
        share = np.repeat(sizes / block.nodes.shape[1], block.nodes.shape[1])
        np.add.at(weights, block.nodes.ravel(), share)
    total = weights.sum()
    return weights / total if total > 0 else None


def to_points(blocks: Sequence[Cells], values: Sequence[Array], points: Array) -> Array:
    """Average cell values [cells channels] to points [points channels], weighted by cell size.

    A point takes the mean of the cells around it; one without cells becomes NaN.
    """
    channels = values[0].shape[1]
    total, weight = np.zeros((len(points), channels)), np.zeros(len(points))
    for block, value in zip(blocks, values, strict=True):
        sizes = measures(block, points)
        sizes = np.ones(len(value)) if sizes is None else sizes
        count = block.nodes.shape[1]
        np.add.at(weight, block.nodes.ravel(), np.repeat(sizes, count))
        np.add.at(total, block.nodes.ravel(), np.repeat(sizes[:, None] * value, count, 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Array = total / weight[:, None]
    return mean
