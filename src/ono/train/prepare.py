"""What a run begins with: the data its recipe asks for, and an operator for it."""

from __future__ import annotations

from pathlib import Path

import torch

import ono
from ono.data.batches import training_rows
from ono.data.check import twins
from ono.data.info import Split
from ono.data.store import INFO_FILE, REQUEST_FILE, Dataset
from ono.data.task import Views, refuse_bad_rows, views
from ono.data.view import View
from ono.errors import DataError, RecipeError
from ono.evaluate.card import Card
from ono.evaluate.operator import Operator
from ono.nn.cloud_ends import CloudEnds
from ono.train.recipe import Recipe


def data_of(recipe: Recipe, moved: Path | None = None) -> Dataset:
    """Open the data of a run: where its recipe says, or where it was moved to since.

    Whether it is the same data is for the operator to say, which knows its hash.
    """
    if moved is not None:
        return Dataset.open(moved)
    path = Path(recipe.data.path)
    if not any((path / file).exists() for file in (INFO_FILE, REQUEST_FILE)):
        seen = "" if path.is_absolute() else f", seen from {Path.cwd()},"
        raise DataError(
            f"no dataset at {path}{seen} which is data.path of this run; if it was moved, say "
            "where it is with --data"
        )
    return Dataset.open(path)


def cut(dataset: Dataset, recipe: Recipe) -> Views:
    """Return the splits a recipe asks for."""
    data = recipe.data
    limits: dict[Split, int | None] = {
        "train": data.train,
        "validation": data.validation,
        "test": data.test,
    }
    rollout = recipe.rollout
    if data.coords == "spread" and dataset.info.mesh.kind == "grid":
        raise DataError(
            f"data.coords is spread, but the points of {dataset.path} are an even grid; use box"
        )
    if rollout is not None and dataset.info.task != "rollout":
        raise DataError(
            f"the recipe has a section rollout, but {dataset.path} is a {dataset.info.task} task; "
            "leave the section out"
        )
    if recipe.train.times is not None and dataset.info.task != "timed":
        raise DataError(
            f"train.times is {recipe.train.times}, but {dataset.path} is a {dataset.info.task} "
            "task, whose samples have no times to choose from; leave it out"
        )
    return views(
        dataset,
        resolution=data.resolution,
        limits=limits,
        outputs=data.outputs,
        history=None if rollout is None else rollout.history,
        train_steps=None if rollout is None else rollout.train_steps,
    )


def new_operator(recipe: Recipe, view: View) -> Operator:
    """Return an operator with its first weights and the scales of the training data."""
    card = Card.of(
        view,
        model=recipe.model.name,
        config=recipe.model.config,
        guess=recipe.data.guess,
        coords=recipe.data.coords,
        thin=recipe.data.thin,
        seed=recipe.seed,
        recipe_sha256=recipe.sha256,
        version=ono.__version__,
    )
    _refuse_too_thin(card, view)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        operator = Operator(card)
    _refuse_no_torus(operator)
    operator.fit_scales(lambda: training_rows(view))
    return operator


def _refuse_no_torus(operator: Operator) -> None:
    """Refuse coordinates beyond the unit torus to a network that takes Fourier series on it."""
    on_torus = any(isinstance(part, CloudEnds) for part in operator.model.modules())
    if on_torus and operator.card.coords == "standard":
        raise RecipeError(
            f"data.coords is standard, but {operator.card.model} takes Fourier series of points "
            "between 0 and 1; use box or spread"
        )


def _refuse_too_thin(card: Card, view: View) -> None:
    """Refuse to leave less than three nodes of an axis, or less than 2^dim points of a cloud."""
    thinning = card.thinning()
    if thinning is None:
        return
    if view.shape is None:
        few = thinning.points(view.points, card.mesh.dim) < 2**card.mesh.dim
    else:
        pairs = zip(thinning.shape(view.shape), view.shape, strict=True)
        few = any(kept < min(3, nodes) for kept, nodes in pairs)
    if few:
        size = "x".join(map(str, view.shape)) if view.shape is not None else str(view.points)
        raise DataError(
            f"data.thin is {card.thin}, which leaves too few of the {size} points of "
            f"{view.dataset.path}; choose a smaller number or leave it out"
        )


def refuse_bad_data(parts: Views, recipe: Recipe) -> None:
    """Refuse data that cannot be trained on, before the run directory is touched."""
    if recipe.train.gradient_loss > 0 and parts.train.shape is None:
        raise DataError(
            f"train.gradient_loss is {recipe.train.gradient_loss}, but {parts.train.dataset.path} "
            "is a point cloud, which has no differences; set it to 0"
        )
    for finding in twins(parts.train.dataset):
        if finding.severity == "fatal":
            raise DataError(f"{parts.train.dataset.path}: {finding}")
    refuse_bad_rows(parts.train, "train")
    refuse_bad_rows(parts.validation, "validation")
    refuse_bad_rows(parts.test, "test")
