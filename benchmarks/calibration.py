"""Evaluate the same weights with the exact and with the running covariance, while they train.

    python benchmarks/calibration.py darcy/ono train.epochs=60 train.batch=16 --out calibration

writes OUT.txt (a table) and OUT.svg (the plot of the documentation).
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch

from ono.data.batches import epoch_order, load
from ono.data.store import Dataset
from ono.device import choose_device, describe_device
from ono.evaluate.operator import Operator
from ono.evaluate.score import score
from ono.models.ono import ONO
from ono.nn.whitening import Whitening
from ono.train.prepare import cut, new_operator
from ono.train.recipe import Recipe
from ono.train.run import commit
from ono.train.step import Step

Row = tuple[int, float, float, float]


def with_running_covariance(operator: Operator) -> Operator:
    """Return a copy whose layers whiten with the running covariance instead of the exact one."""
    twin = copy.deepcopy(operator)
    assert isinstance(twin.model, ONO)
    for attention in twin.model.orthogonal_attentions():
        assert isinstance(attention.norm, Whitening)
        moments = attention.norm.moments
        moments.reset()
        moments.observe(moments.recorded(), 1)
        attention.settle()
    return twin


def measure(recipe: Recipe, every: int) -> tuple[list[Row], str]:
    device = torch.device(choose_device(recipe.train.device))
    parts = cut(Dataset.open(recipe.data.path), recipe)
    operator = new_operator(recipe, parts.train)
    step = Step(operator.to(device), recipe)
    train, test = load(parts.train, device), load(parts.test, device)
    steps = -(-len(train) // recipe.train.batch) * recipe.train.epochs
    rows: list[Row] = []
    done = 0
    for epoch in range(1, recipe.train.epochs + 1):
        for batch in train.batches(epoch_order(recipe.seed, epoch, len(train)), recipe.train.batch):
            step.rate.fill_(recipe.optimiser.rate(done, steps))
            step(batch)
            done += 1
        loss = step.tally.take_mean_loss()
        if epoch % every == 0:
            running = score(with_running_covariance(operator), test).mean
            operator.calibrate(train)
            rows.append((epoch, loss, score(operator, test).mean, running))
            print("epoch {} train {:.4f} exact {:.4f} running {:.4f}".format(*rows[-1]), flush=True)
    return rows, describe_device(str(device))


def table(rows: list[Row], recipe: Recipe, header: str) -> str:
    lines = [
        header,
        f"recipe   {recipe.sha256[:12]}    {recipe.model.config}",
        "",
        "epoch   train loss   test error, exact covariance   test error, running covariance",
        *("{:5d}   {:10.4f}   {:28.4f}   {:30.4f}".format(*row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def plot(rows: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    epochs = [row[0] for row in rows]
    axes.semilogy(epochs, [row[3] for row in rows], color="#c2410c", label="running covariance")
    axes.semilogy(epochs, [row[2] for row in rows], color="#1d4ed8", label="exact covariance")
    axes.semilogy(epochs, [row[1] for row in rows], color="#6b7280", lw=1, label="training loss")
    axes.set(xlabel="epoch", ylabel="relative L2 error")
    axes.grid(alpha=0.25, which="both")
    axes.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--commit", default=commit(), help="where the source has no history")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    recipe = Recipe.load(given.recipe, given.overrides)
    rows, device = measure(recipe, given.every)
    command = " ".join(["benchmarks/calibration.py", given.recipe, *given.overrides])
    made = f"commit   {given.commit}    device  {device}    torch {torch.__version__}"
    text = table(rows, recipe, f"command  {command}\n{made}")
    given.out.with_suffix(".txt").write_text(text)
    plot(rows, given.out.with_suffix(".svg"))
    print(text)


if __name__ == "__main__":
    main()
