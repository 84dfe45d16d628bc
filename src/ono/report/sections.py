"""The sections of a report, each from the evidence to markup; empty where nothing is known."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from ono.models.ono_config import ONOConfig
from ono.report import figures
from ono.report.charts import NARROW, frame_errors
from ono.report.evidence import Evidence
from ono.report.page import facts, folded, number, numbers, picture, section
from ono.report.series import series_figure
from ono.report.words import duration
from ono.train.evaluations import Row

_DRAWN_OUTPUTS = 4
_SHOWN_WARNINGS = 5


def size(shape: Sequence[int] | None) -> str:
    """Write a shape as people say it.

    >>> size((29, 29)), size(None)
    ('29 × 29', '')
    """
    return " × ".join(map(str, shape or ()))


def training(found: Evidence) -> str:
    """Show how the losses fell."""
    if not found.metrics:
        return section("Training", "No epoch has ended yet.")
    gradient = found.recipe.train.gradient_loss
    extra = f", plus {gradient:g} times the error of the gradient" if gradient else ""
    chosen = found.outcome.epoch if found.outcome else None
    last = found.metrics[-1]
    return section(
        "Training",
        f"The loss is the relative L2 error{extra}, averaged over an epoch while the weights "
        "change; the validation error is measured at the end of an epoch.",
        picture(
            figures.curves(found.metrics, chosen),
            "curves",
            f"Training loss and validation error over {last['epoch']} epochs, ending at "
            f"{last['train']:.4g} and {last.get('validation', float('nan')):.4g}.",
            "Loss and validation error per epoch on a logarithmic scale, the learning rate below"
            + ("." if chosen is None else "; the ring is the checkpoint that validation chose."),
            narrow=figures.curves(found.metrics, chosen, width=NARROW),
        ),
    )


def errors(found: Evidence) -> str:
    """Show how errors spread over the test split."""
    if found.outcome is None:
        return ""
    every = list(found.outcome.test_errors.values())
    lost = sum(error != error for error in every)
    warning = f" {lost} samples have no finite error and are left out." if lost else ""
    return section(
        "Errors over the test split",
        f"One relative L2 error for each of {len(every)} samples; the headline is their mean."
        + warning,
        picture(
            figures.error_distribution(every),
            "errors",
            f"Sorted test errors, from {number(min(every))} to {number(max(every))}.",
            "Left, every test sample in rising order of its error. Right, how many samples have an "
            "error of that size.",
            narrow=figures.error_distribution(every, width=NARROW),
        ),
    )


def samples(found: Evidence) -> str:
    """Show what the operator makes of its best, median and worst sample."""
    seen = found.pictures
    if seen is None or not seen.samples:
        return ""
    drawn = []
    for channel, output in enumerate(seen.outputs[:_DRAWN_OUTPUTS]):
        rows = ", ".join(f"{s.label} row {s.row} with {number(s.error)}" for s in seen.samples)
        drawn.append(
            picture(
                figures.samples_figure(seen.samples, seen.inputs, output, channel),
                f"samples{channel}",
                f"Input, truth, prediction and error of {output.name}: {rows}.",
                "Truth and prediction of a sample share one colour scale; the absolute error has "
                "its own, the same for all three samples.",
            )
        )
    text = (
        f"The best, the median and the worst sample of the {seen.split} split by relative L2 error."
    )
    if seen.series is not None:
        text += f" The pictures show the last time, t = {seen.series.times[-1]:.4g}."
    if found.outcome is None:
        text += " The test split stays unseen until the run has ended."
    return section("Samples", text, *drawn)


def frames(found: Evidence) -> str:
    """Show how the error changes over the times of a series, and the frames of one sample."""
    seen, outcome = found.pictures, found.outcome
    if seen is None or seen.series is None:
        return ""
    shown = []
    if outcome is not None and outcome.test_by_time is not None:
        by_time = outcome.test_by_time
        shown.append(
            picture(
                frame_errors(seen.series.times, by_time),
                "frames",
                f"Error at each time, from {number(by_time[0])} to {number(by_time[-1])}.",
                "The relative L2 error of each frame alone, averaged over the test split.",
            )
        )
    for channel, output in enumerate(seen.outputs[:_DRAWN_OUTPUTS]):
        shown.append(
            picture(
                series_figure(seen.series, output, channel),
                f"series{channel}",
                f"Truth, prediction and error of {output.name} at several times.",
                f"Row {seen.series.row}, the median sample. Truth and prediction share one colour "
                "scale over all times; the error has its own.",
            )
        )
    return section("Over time", "The frames that the operator was asked for.", *shown)


def resolutions(found: Evidence) -> str:
    """Show the errors where the operator was not trained."""
    heading = "Other resolutions and query points"
    if not found.evaluations:
        return section(
            heading,
            "Not evaluated yet. `ono eval RUN --resolution N` adds a grid to this section.",
        )
    every = sorted(found.evaluations, key=lambda e: (e.kind, e.points))
    trained = math.prod(found.resolution) if found.resolution else None
    at = [i for i, e in enumerate(every) if e.kind == "grid" and e.points == trained]
    levels = [
        figures.Level(
            e.kind, e.points, size(e.resolution) or f"{e.points:,}", e.mean, e.median, e.worst
        )
        for e in every
    ]
    lines = [
        (
            where(e) + (", as trained" if i in at else ""),
            f"{e.points:,}",
            number(e.mean),
            number(e.median),
            number(e.worst),
            f"{e.samples}",
            duration(e.seconds),
        )
        for i, e in enumerate(every)
    ]
    return section(
        heading,
        "The same weights on other grids, and at scattered points given inputs at the training "
        "resolution.",
        picture(
            figures.resolution_figure(levels, trained),
            "resolution",
            "; ".join(f"{where(e)}: mean error {number(e.mean)}" for e in every),
            "Mean relative L2 error against the number of points; a thin line reaches from the "
            "median to the worst sample, and the dotted line marks the training resolution.",
            narrow=figures.resolution_figure(levels, trained, width=NARROW),
        ),
        numbers(
            ("where", "points", "mean", "median", "worst", "samples", "time"),
            lines,
            marked=at[0] if at else None,
        ),
    )


def where(evaluation: Row) -> str:
    """Name an evaluation."""
    if evaluation.source not in ("", "random"):
        name = f"points of {evaluation.source}"
    elif evaluation.kind != "grid":
        name = "scattered points"
    else:
        name = f"grid {size(evaluation.resolution)}".strip()
    return name if evaluation.split == "test" else f"{name}, {evaluation.split}"


def eigenfunctions(found: Evidence) -> str:
    """Show what one layer has learned to expand solutions in."""
    config = found.recipe.model.config
    if found.pictures is None or found.pictures.eigen is None or not isinstance(config, ONOConfig):
        return ""
    eigen, options = found.pictures.eigen, config.eigen
    if options.norm == "ortho":
        exact = "" if options.eval_covariance == "calibrated" else "nearly "
        claim = (
            f"The {options.functions} eigenfunctions ψ of a head are {exact}orthonormal over the "
            "training data, up to the ridge: over its samples and points together, not within one "
            "sample. How far they are from it stands under the numerics. "
        )
    else:
        claim = f"This layer normalises with {options.norm}; its functions are not orthonormal. "
    heads, count, _ = eigen.fields.shape
    return section(
        "Learned eigenfunctions",
        f"{claim}In the kernel, each is weighed by its eigenvalue μ.",
        picture(
            figures.eigenfunctions_figure(eigen),
            "eigenfunctions",
            f"{count} eigenfunctions for each of {heads} heads of layer {eigen.layer}.",
            f"Layer {eigen.layer} of 0 to {config.layers - 1}, evaluated on row {eigen.row} (the "
            f"median sample): {heads} of {options.heads} heads, the {count} functions with the "
            "largest μ first, all on one scale. Layers, heads and functions count from zero.",
        ),
    )


def health(found: Evidence) -> str:
    """Say whether the numerics behaved."""
    last = found.metrics[-1] if found.metrics else {}
    config, recipe = found.recipe.model.config, found.recipe.train
    rows = []
    if isinstance(config, ONOConfig) and config.eigen.norm == "ortho":
        exact = config.eigen.eval_covariance == "calibrated"
        how = "one exact pass over the training data" if exact else "a running mean"
        rows += [
            ("Covariance at evaluation", how),
            ("Ridge, relative to the mean diagonal", f"{config.eigen.ridge:g}"),
            ("Failed factorisations", str(last.get("failed_factorisations", "not recorded"))),
        ]
        if "orthonormality_defect" in last:
            rows.append(("Defect ‖mean ψᵀψ - I‖", f"{last['orthonormality_defect']:.1e}"))
    skipped = last.get("skipped", "not recorded")
    rows.append(("Skipped steps", f"{skipped} ({recipe.skips} tolerated)"))
    if found.outcome is not None:
        rows.append(("Checkpoints that could not be written", str(found.outcome.failed_saves)))
    resumed = sum(e.get("event") == "resume" for e in found.events)
    rows.append(("Resumed", {0: "never", 1: "once"}.get(resumed, f"{resumed} times")))
    told = [str(e.get("message", "")) for e in found.events if e.get("event") == "warning"]
    rows += [("Warning", message) for message in told[-_SHOWN_WARNINGS:]]
    return section(
        "Calibration and numerics",
        "A step with a loss or gradient that is not finite is skipped, never applied; a "
        "factorisation that fails would show here.",
        facts(rows),
    )


def origin(found: Evidence) -> str:
    """Say what made the result: seed, commit, hashes, environment, recipe."""
    recipe, outcome, environment = found.recipe, found.outcome, dict(found.environment)
    commit = (outcome.commit if outcome else None) or environment.pop("commit", None)
    environment.pop("commit", None)
    seed = recipe.seed if outcome is None else outcome.seed
    rows = [("Seed", str(seed)), ("Commit", str(commit or "not known"))]
    rows.append(("Recipe SHA-256", found.recipe_sha256))
    if outcome is not None:
        rows.append(("Dataset SHA-256", outcome.dataset_sha256))
    rows.append(("Dataset", recipe.data.path))
    if found.parts is not None and found.is_of_this_data:
        source = found.parts.train.dataset.info.provenance
        made = f"{source.maker} {source.size}".strip()
        rows.append(("Data from", made + ("" if source.seed is None else f", seed {source.seed}")))
    packages = environment.pop("packages", {})
    rows += [
        (name.capitalize(), value if isinstance(value, str) else json.dumps(value))
        for name, value in environment.items()
    ]
    if isinstance(packages, dict) and packages:
        rows.append(("Packages", ", ".join(f"{name} {v}" for name, v in packages.items())))
    return section(
        "Where this comes from",
        "With the same recipe, data and commit, the same machine gives the same numbers.",
        facts(rows),
        folded("The resolved recipe", recipe.to_yaml()),
    )
