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
        array: Array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"no file {path}") from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} is not a .npy array of numbers: {error}; save it with numpy.save"
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise DataError(f"{path} must hold one array of numbers, such as numpy.save writes")
    return array
