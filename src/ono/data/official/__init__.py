"""The published files of the benchmarks, read into the same stores that the makers fill."""

from ono.data.official.forging import PAIRINGS
from ono.data.official.reader import read_official

__all__ = ["PAIRINGS", "read_official"]
