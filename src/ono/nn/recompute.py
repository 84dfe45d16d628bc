"""Keep the inputs of a block instead of everything inside it, and compute it again in backward.

Most of the memory of training is what lies between the input and the output of a block. Computing
a block twice costs a third more time and leaves two flows per layer. What is computed again must
have no effect besides its result: statistics are counted outside of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

Given = TypeVarTuple("Given")
Result = TypeVar("Result")


class Recomputable(nn.Module):
    """A module that can forget what happens inside it."""

    recompute: bool = False

    def again(self, function: Callable[[*Given], Result], *args: *Given) -> Result:
        """Call a function, now and, if this module forgets, once more in backward."""
        if not (self.recompute and torch.is_grad_enabled()):
            return function(*args)
        # A CUDA graph cannot store the state of the random numbers; blocks here draw none.
        result: Result = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
        return result


def recompute_blocks(module: nn.Module, wanted: bool = True) -> int:
    """Let the blocks inside a module forget, or remember again; return how many there are.

    >>> from ono.models.ono import ONO, ONOConfig
    >>> from ono.problem import Problem
    >>> model = ONO(ONOConfig(layers=2), Problem(dim=2, in_channels=1, out_channels=1))
    >>> recompute_blocks(model) > 0, recompute_blocks(nn.Linear(2, 2))
    (True, 0)
    """
    parts = [part for part in module.modules() if isinstance(part, Recomputable)]
    for part in parts:
        part.recompute = wanted
    return len(parts)
