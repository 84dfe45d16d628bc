"""Which kernels a model runs on: torch's, or the fused ones where they apply."""

from __future__ import annotations

import torch

from ono.errors import RecipeError
from ono.evaluate.operator import Operator
from ono.models.ono import ONO
from ono.models.ono_fused import fuse_blocks, fuse_landmarks, unfusable
from ono.nn.fused_launch import missing
from ono.train.recipe import Recipe


def choose_kernels(operator: Operator, recipe: Recipe, device: torch.device) -> bool:
    """Let the operator use fused kernels if recipe and machine allow; say whether it does."""
    wanted = recipe.train.kernels
    hindrance = _hindrance(operator, recipe, device)
    if wanted == "fused" and hindrance is not None:
        raise RecipeError(f"train.kernels=fused {hindrance}; use auto or plain")
    fused = hindrance is None and wanted != "plain"
    fuse_blocks(operator, fused, streams=recipe.train.streams)
    fuse_landmarks(operator, wanted != "plain")
    return fused


def _hindrance(operator: Operator, recipe: Recipe, device: torch.device) -> str | None:
    """Return what keeps an operator from the fused kernels, as the verb of a sentence, or None."""
    lacking = missing(device, "bf16x6" if recipe.train.precision == "fp32" else "bf16")
    if lacking is not None:
        return lacking
    if not isinstance(operator.model, ONO):
        return f"is for ono, and this model is {operator.card.model}"
    option = unfusable(operator.model.config)
    return None if option is None else f"does not cover {option}"
