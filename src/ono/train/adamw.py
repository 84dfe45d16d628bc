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
        self, losses: Float[Tensor, " batch"], norm: Float[Tensor, ""], longest: float | None
    ) -> Bool[Tensor, ""]:
        """Update the parameter if losses and gradient are finite; return whether they are.

        Given is the norm the gradient has; a longer one than `longest` is clipped.
        """
        if self.quick:
            return self._update(losses, norm, longest)
        size = losses.mean() + norm
        applied: Tensor = size - size == 0  # not true of NaN and infinity
        # What torch's fused optimisers take from a GradScaler.
        self.found_inf = (~applied).float()
        self.grad_scale = None if longest is None else norm.clamp_min(longest) / longest
        self.step()
        return applied

    def _update(self, losses: Tensor, norm: Tensor, longest: float | None) -> Tensor:
        import triton

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
        samples = len(losses)
        applied = torch.empty((), dtype=torch.bool, device=whole.device)
        with torch.cuda.device_of(whole):
            adamw[-(-whole.numel() // _BLOCK),](
                whole, whole.grad, state["exp_avg"], state["exp_avg_sq"], state["step"],
                group["lr"], losses, norm, applied, whole.numel(), samples, longest, **numbers,
                many=triton.next_power_of_2(samples), block=_BLOCK,
            )  # fmt: skip
        state["step"] += applied
        return applied
