"""What can go wrong, by name.

Every error a user can cause is an `OnoError`. Its message names the thing, the value, what was
expected and what to do; the command line prints it without a traceback and leaves with
`exit_code`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class OnoError(Exception):
    """Something failed while working; nothing was left half-written."""

    exit_code: ClassVar[int] = 1


class InputError(OnoError):
    """What was given cannot be used: a recipe, a file, an option."""

    exit_code: ClassVar[int] = 2


class RecipeError(InputError):
    """The recipe is not valid."""


class DataError(InputError):
    """A dataset is missing, damaged, or not fit to be trained on."""


class ShapeError(InputError, ValueError):
    """An array has the wrong rank, channels or number of points."""


class UnsupportedDomain(InputError):
    """The model cannot work on this kind of domain."""


class NotCalibrated(OnoError):
    """The model was trained after its covariance was last computed."""


class CheckpointError(InputError):
    """A checkpoint is missing, damaged, or belongs to something else."""


class RunInUse(InputError):
    """Another process is writing into this run directory."""


class NonFiniteStep(OnoError):
    """The loss or a gradient was not finite; the step was not applied."""


class OutOfMemory(OnoError):
    """Memory ran out, and smaller parts of a batch are no way out."""


class Interrupted(OnoError):
    """A signal stopped the run after its state was saved."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return a hint naming the choice closest to `word`, or all of them.

    >>> nearest("widht", ["width", "layers"])
    'did you mean width?'
    >>> nearest("zzz", ["width", "layers"])
    'choose from layers, width'
    """
    known = sorted(choices)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
