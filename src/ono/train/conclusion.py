"""What a run comes to: the test error of its best checkpoint, and what it took to get there."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ono.data.batches import load
from ono.data.view import View
from ono.device import describe_device
from ono.evaluate.operator import Operator
from ono.evaluate.score import Score, score
from ono.files import write_text
from ono.train.recipe import Recipe
from ono.train.run import RESULT, Run, commit
from ono.train.state import Result, State


def conclude(
    run: Run,
    recipe: Recipe,
    state: State,
    *,
    chosen: Path,
    test: View,
    device: torch.device,
    failed_saves: int,
    micro_batch: int | None,
) -> Result:
    """Evaluate the chosen checkpoint on the test split, and write the result of the run."""
    operator = Operator.load(chosen, device)
    found = score(operator, load(test, device, recipe.data.memory))
    channels = zip(operator.card.outputs, found.channels.double().mean(0), strict=True)
    seen, unseen = _by_training(found, recipe)
    content = {
        "validation": state.best,
        "test": found.mean,
        "test_by_channel": {channel.name: float(mean) for channel, mean in channels},
        "test_by_time": None if found.frames is None else found.frames.double().mean(0).tolist(),
        "test_seen": seen,
        "test_unseen": unseen,
        "test_errors": dict(zip(found.rows.tolist(), found.errors.tolist(), strict=True)),
        "epoch": state.best_epoch,
        "checkpoint": chosen.name,
        "seconds": state.seconds,
        "device": describe_device(str(device)),
        "peak_memory_bytes": _peak(device),
        "parameters": sum(p.numel() for p in operator.parameters()),
        "recipe_sha256": recipe.sha256,
        "dataset_sha256": test.dataset.sha256,
        "seed": recipe.seed,
        "commit": commit(),
        "failed_saves": failed_saves,
        "micro_batch": micro_batch,
    }
    write_text(run.path / RESULT, json.dumps(content, indent=1) + "\n")
    return Result(state.best, found.mean, state.best_epoch, state.seconds, run.path)


def _by_training(found: Score, recipe: Recipe) -> tuple[float | None, float | None]:
    """Return the errors over the frames that were trained on and over those that were not."""
    trained = None if recipe.rollout is None else recipe.rollout.train_steps
    if trained is None or found.frames is None or trained == found.frames.shape[1]:
        return None, None
    return found.mean_over(slice(trained)), found.mean_over(slice(trained, None))


def _peak(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
