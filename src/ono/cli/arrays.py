"""Read arrays a user names; nothing is ever unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ono.errors import DataError

if TYPE_CHECKING:
    from ono.data.info import Array


def read_array(path: Path) -> Array:
    """Read a `.npy` file of numbers."""
    import numpy as np

    try:
        with path.open("rb") as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"no file {path}") from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} is not a .npy array of numbers: {error}; save it with numpy.save"
        ) from None
    if array.dtype.kind not in "fiub":
        raise DataError(f"{path} must hold an array of real numbers, got {array.dtype}")
    return array
