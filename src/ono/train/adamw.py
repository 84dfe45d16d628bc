"""AdamW for the one long parameter of `FlatParameters`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_BLOCK = 1024


class FlatAdamW(torch.optim.AdamW):
    """AdamW that gives all of a GPU something to do with a single parameter.

    That of torch cuts a parameter into so long pieces that one of a million numbers occupies a
    sixth of a large GPU. State and formula are the same, for a learning rate that is a tensor and
    neither `amsgrad` nor `maximize`. `found_inf` and `grad_scale` are what torch's fused optimisers
    take from a `GradScaler`.
    """

    quick = False
    """Whether to use the kernel, which needs a GPU and Triton."""
    found_inf: Tensor
    grad_scale: Tensor | None = None

    @torch.no_grad()
    def update(self) -> None:
        """Update the parameter as `step` does: not at all if `found_inf` is 1."""
        if not self.quick:
            self.step()
            return
        (group,) = self.param_groups
        (whole,) = group["params"]
        from ono.train.adamw_triton import adamw

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
                group["lr"], self.found_inf, self.grad_scale, whole.numel(),
                **numbers, scaled=self.grad_scale is not None, block=_BLOCK,
            )  # fmt: skip
        state["step"] += 1 - self.found_inf
