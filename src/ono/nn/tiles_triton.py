"""Tiles of points: where they lie, and how they are loaded and stored.

An array of points is given by its address, or by a descriptor of its tiles, which the hardware
copies to and from shared memory by itself. That takes fewer instructions and registers, but each
copy answers later: it pays where there are many programs.
"""

import triton
import triton.language as tl


@triton.jit
def places(sample, first, points, tile: tl.constexpr, width: tl.constexpr):
    """Return where a tile begins in [samples points width], its own places, and which there are.

    Of very many points only the beginning needs 64 bits: one number, and not one for each place.
    """
    row, column = tl.arange(0, tile), tl.arange(0, width)
    begin = (tl.cast(sample, tl.int64) * points + first) * width
    at = row[:, None] * width + column[None, :]
    return begin, at, (first + row < points)[:, None] & (column < width)[None, :]


@triton.jit
def own_tile(tile: tl.constexpr):
    """Return the sample of this program and its first point."""
    return tl.program_id(1).to(tl.int64), tl.program_id(0) * tile


@triton.jit
def take(array, sample, first, points, tile: tl.constexpr, width: tl.constexpr):
    """Load a tile of an array [samples points width]; points that there are not are zeros."""
    if isinstance(array, tl.tensor_descriptor):
        return tl.reshape(array.load([tl.cast(sample, tl.int32), first, 0]), (tile, width))
    else:
        begin, at, inside = places(sample, first, points, tile, width)
        return tl.load(array + begin + at, mask=inside, other=0.0)


@triton.jit
def give(array, sample, first, points, x, tile: tl.constexpr, width: tl.constexpr):
    """Store a tile in the type of its array."""
    if isinstance(array, tl.tensor_descriptor):
        x = tl.reshape(x.to(array.dtype), (1, tile, width))
        array.store([tl.cast(sample, tl.int32), first, 0], x)
    else:
        begin, at, inside = places(sample, first, points, tile, width)
        tl.store(array + begin + at, x.to(array.dtype.element_ty), mask=inside)


@triton.jit
def point_weights(weights, sample, first, points, weighted: tl.constexpr, tile: tl.constexpr):
    """Return how much the points of a tile count: as they are weighted, or all alike."""
    if weighted:
        row = first + tl.arange(0, tile)
        return tl.load(weights + sample * points + row, mask=row < points, other=0.0)
    else:
        return tl.full((tile,), 1.0, tl.float32) / points
