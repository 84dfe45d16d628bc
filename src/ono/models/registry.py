"""Every operator by name: its options, its presets and where its class lives (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel

from ono.models.ono_config import ONOConfig

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
}


def build(config: BaseModel, problem: Problem) -> nn.Module:
    """Build the operator a configuration belongs to, or refuse a problem it cannot handle."""
    entry = next(entry for entry in MODELS.values() if type(config) is entry.config)
    module, name = entry.home.split(":")
    return cast("nn.Module", getattr(import_module(module), name)(config, problem))
