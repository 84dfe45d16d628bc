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


def build(
    config: BaseModel, *, dim: int, in_channels: int, out_channels: int, timed: bool = False
) -> nn.Module:
    """Build the operator a configuration belongs to."""
    entry = next(entry for entry in MODELS.values() if type(config) is entry.config)
    module, name = entry.home.split(":")
    model = getattr(import_module(module), name)
    return cast(
        "nn.Module",
        model(config, dim=dim, in_channels=in_channels, out_channels=out_channels, timed=timed),
    )
