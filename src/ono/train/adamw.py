"""AdamW for the one long parameter of `FlatParameters`."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_BLOCK = 1024


class FlatAdamW(torch.optim.AdamW):
    """AdamW that gives all of a GPU something to do with a single parameter.

    That of torch cuts a parameter into so long pieces that one of a million numbers occupies a
    sixth of a large GPU. State and formula are the same, for a learning rate that is a tensor and
    neither `amsgrad` nor `maximize`.
    """

    quick = False
    """Whether to use the kernel, which needs a GPU and Triton."""
    found_inf: Tensor
    grad_scale: Tensor | None

    @torch.no_grad()
    def update(
        self, applied: Bool[Tensor, ""], norm: Float[Tensor, ""], longest: float | None
    ) -> None:
        """Update the parameter if that is to be applied, with a gradient of at most that length.

        Given is the norm the gradient has.
        """
        if self.quick:
            self._update(applied, norm, longest)
            return
        # What torch's fused optimisers take from a GradScaler.
        self.found_inf = (~applied).float()
        self.grad_scale = None if longest is None else norm.clamp_min(longest) / longest
        self.step()

    def _update(self, applied: Tensor, norm: Tensor, longest: float | None) -> None:
        from ono.train.adamw_triton import adamw

        (group,) = self.param_groups
        (whole,) = group["params"]
        state = self.state[whole]
        if not state:
            state["step"] = torch.zeros((), device=whole.device)
            state["exp_avg"] = torch.zeros_like(whole)
            state["exp_avg_sq"] = torch.zeros_like(whole)
        beta_1, beta_2 = group["betas"]
        numbers: dict[str, Any] = {
            "decay": group["weight_decay"],
            "beta_1": beta_1,
            "beta_2": beta_2,
            "epsilon": group["eps"],
        }
        with torch.cuda.device_of(whole):
            adamw[-(-whole.numel() // _BLOCK),](
                whole, whole.grad, state["exp_avg"], state["exp_avg_sq"], state["step"],
                group["lr"], applied, norm, whole.numel(), longest, **numbers, block=_BLOCK,
            )  # fmt: skip
        state["step"] += applied
