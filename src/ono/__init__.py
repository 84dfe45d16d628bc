"""Learn solution operators of PDEs with orthogonal attention.

Names are loaded when first used, so that the command line answers before torch is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ono.data.store import Dataset as Dataset
    from ono.domain import Domain as Domain
    from ono.evaluate.calibrate import calibrate as calibrate
    from ono.evaluate.metrics import relative_l2 as relative_l2
    from ono.evaluate.operator import Operator as Operator
    from ono.evaluate.predict import predict as predict
    from ono.evaluate.recorded import Recorded as Recorded
    from ono.models.ono import ONO as ONO
    from ono.models.ono_config import ONOConfig as ONOConfig
    from ono.problem import Problem as Problem
    from ono.train.loop import fit as fit
    from ono.train.loop import resume as resume
    from ono.train.recipe import Recipe as Recipe
    from ono.train.state import Event as Event
    from ono.train.state import Result as Result

__version__ = "0.1.0"

_HOMES = {
    "Dataset": "ono.data.store",
    "Domain": "ono.domain",
    "Event": "ono.train.state",
    "ONO": "ono.models.ono",
    "ONOConfig": "ono.models.ono_config",
    "Operator": "ono.evaluate.operator",
    "Problem": "ono.problem",
    "Recipe": "ono.train.recipe",
    "Recorded": "ono.evaluate.recorded",
    "Result": "ono.train.state",
    "calibrate": "ono.evaluate.calibrate",
    "fit": "ono.train.loop",
    "predict": "ono.evaluate.predict",
    "relative_l2": "ono.evaluate.metrics",
    "resume": "ono.train.loop",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ono' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
