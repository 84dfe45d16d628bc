"""Say which samples made a step fail."""

from __future__ import annotations

import shlex
from collections import deque

import numpy as np
import torch

from ono.data.info import Array
from ono.data.view import View
from ono.evaluate.operator import Operator
from ono.nn.whitening import failed_factorisations
from ono.train.recipe import Recipe
from ono.train.state import State
from ono.train.step import loss_options, sample_losses


class Guard:
    """Remember the batches since the device was last asked whether all steps were finite."""

    def __init__(self, view: View, device: torch.device, batches: int, recipe: Recipe) -> None:
        self.view, self.device, self.recipe = view, device, recipe
        self.recent: deque[tuple[int, int, list[int]]] = deque(maxlen=batches)

    def remember(self, state: State, part: Array) -> None:
        """Note which samples of the view a step has seen."""
        first = self.view.rows.start
        self.recent.append((state.epoch, state.step, [first + int(place) for place in part]))

    def explain(self, operator: Operator, skipped: int, tolerated: int) -> str:
        """Describe the failed step: when, which rows, and what to do."""
        epoch, step, rows = self.recent[-1]
        culprits = self._culprits(operator) or rows
        advice = (
            "lower optimiser.learning_rate, check the data with `ono data check "
            f"{shlex.quote(str(self.view.dataset.path))}`, or set train.nonfinite=skip:n"
        )
        if failed := failed_factorisations(operator):
            advice = (
                f"{failed} covariances could not be factored: raise model.eigen.ridge, lower "
                f"model.eigen.functions, or {advice}"
            )
        return (
            f"the loss or its gradient was not finite in epoch {epoch + 1}, at or before step "
            f"{step + 1} ({skipped} skipped, {tolerated} tolerated); dataset rows {culprits[:16]}; "
            f"no such step was applied; {advice}"
        )

    @torch.no_grad()
    def _culprits(self, operator: Operator) -> list[int]:
        """Return the remembered rows whose own loss is not finite with the present weights."""
        first = self.view.rows.start
        bad = []
        for _, _, rows in self.recent:
            for row in rows:
                batch = self.view.read(np.array([row - first])).to(self.device)
                losses = sample_losses(operator, batch, **loss_options(self.recipe))
                if not torch.isfinite(losses).all():
                    bad.append(row)
        return bad
