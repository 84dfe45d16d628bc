"""Every operator by name: its options, its presets and where its class lives (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel

from ono.models.deeponet_config import DeepONetConfig
from ono.models.f_fno_config import FFNOConfig
from ono.models.fno_config import FNOConfig
from ono.models.galerkin_config import GalerkinConfig
from ono.models.geo_fno_config import GeoFNOConfig
from ono.models.gnot_config import GNOTConfig
from ono.models.lsm_config import LSMConfig
from ono.models.ono_config import ONOConfig
from ono.models.transolver_config import TransolverConfig
from ono.models.u_fno_config import UFNOConfig

if TYPE_CHECKING:
    from torch import nn

    from ono.problem import Problem


@dataclass(frozen=True, slots=True)
class Entry:
    """One operator. `home` is module:class, imported only when a model is built."""

    config: type[BaseModel]
    presets: Mapping[str, Callable[[], BaseModel]]
    home: str


MODELS: dict[str, Entry] = {
    "ono": Entry(
        ONOConfig,
        {
            "default": ONOConfig,
            "paper": ONOConfig.paper,
            "paper-text": lambda: ONOConfig.paper("text"),
        },
        "ono.models.ono:ONO",
    ),
    "fno": Entry(FNOConfig, {"default": FNOConfig}, "ono.models.fno:FNO"),
    "geo-fno": Entry(GeoFNOConfig, {"default": GeoFNOConfig}, "ono.models.geo_fno:GeoFNO"),
    "u-fno": Entry(UFNOConfig, {"default": UFNOConfig}, "ono.models.u_fno:UFNO"),
    "f-fno": Entry(
        FFNOConfig, {"default": FFNOConfig, "deep": FFNOConfig.deep}, "ono.models.f_fno:FFNO"
    ),
    "galerkin": Entry(
        GalerkinConfig,
        {"default": GalerkinConfig, "lite": GalerkinConfig.lite},
        "ono.models.galerkin:Galerkin",
    ),
    "lsm": Entry(LSMConfig, {"default": LSMConfig}, "ono.models.lsm:LSM"),
    "gnot": Entry(GNOTConfig, {"default": GNOTConfig}, "ono.models.gnot:GNOT"),
    "deeponet": Entry(DeepONetConfig, {"default": DeepONetConfig}, "ono.models.deeponet:DeepONet"),
    "transolver": Entry(
        TransolverConfig, {"default": TransolverConfig}, "ono.models.transolver:Transolver"
    ),
}


def build(config: BaseModel, problem: Problem) -> nn.Module:
    """Build the operator a configuration belongs to, or refuse a problem it cannot handle."""
    entry = next(entry for entry in MODELS.values() if type(config) is entry.config)
    module, name = entry.home.split(":")
    return cast("nn.Module", getattr(import_module(module), name)(config, problem))
