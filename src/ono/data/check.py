"""Look through a dataset for what would spoil training or make its errors meaningless."""

from __future__ import annotations

import hashlib
from collections import defaultdict

import numpy as np

from ono.data.check_mesh import geometry, point_order
from ono.data.finding import Finding, Severity, in_samples, varying
from ono.data.info import SPLITS, Array, ArrayName, layout_problems
from ono.data.sources import Sources
from ono.data.store import Dataset
from ono.errors import DataError

__all__ = ["Finding", "check", "twins"]


def check(dataset: Dataset) -> list[Finding]:
    """Return all findings, fatal ones first. One sample is in memory at a time.

    Open the dataset with `strict=False` to have wrong shapes listed instead of raised.
    """
    if problems := layout_problems(dataset.info, dataset.arrays):
        return [Finding("fatal", problem, "arrays") for problem in problems]
    findings = [finding for look in LOOKS for finding in look(dataset)]
    return sorted(findings, key=lambda finding: finding.severity)


def _description(dataset: Dataset) -> list[Finding]:
    """Judge what can be known without reading values."""
    findings = []
    for split in SPLITS:
        if split not in dataset.info.splits:
            severity: Severity = "fatal" if split == "train" else "note"
            findings.append(Finding(severity, "there are no such rows", f"split {split}"))
    for name, array in dataset.arrays.items():
        if name not in ("offsets", "draws") and array.dtype != np.float32:
            what = f"stored as {array.dtype.str}, converted to <f4 when read"
            findings.append(Finding("note", what, name))
        if not array.flags.c_contiguous:
            findings.append(Finding("note", "stored in Fortran order, slow to read by row", name))
    if dataset.times is not None and (np.diff(dataset.times) <= 0).any():
        findings.append(Finding("fatal", "they do not increase", "times"))
    if dataset.info.report is not None:
        failed = [i for i, good in enumerate(dataset.info.report.converged) if not good]
        if failed:
            findings.append(in_samples("fatal", "the solver did not converge", "report", failed))
    return findings


def _sources(dataset: Dataset) -> list[Finding]:
    """Read where the rows come from, which training does too."""
    if not dataset.info.files:  # it is only in memory, whatever lies at its path
        return []
    try:
        Sources.read(dataset.path)
    except DataError as error:
        return [Finding("fatal", str(error), "sources")]
    return []


def _values(dataset: Dataset) -> list[Finding]:
    """Find values that are not finite."""
    own, findings = varying(dataset), []
    for name, array in dataset.arrays.items():
        at, bad = [], 0
        for i in range(dataset.info.samples if name in own else 1):
            row = dataset.of_sample(name, i) if name in own else array
            if missing := int(np.count_nonzero(~np.isfinite(row))):
                at.append(i)
                bad += missing
        if bad and name in own:
            findings.append(in_samples("fatal", f"{bad} values are not finite", name, at))
        elif bad:
            findings.append(Finding("fatal", f"{bad} values are not finite", name))
    return findings


def _weights(dataset: Dataset) -> list[Finding]:
    """Find weights that are no measure: negative somewhere, or zero everywhere."""
    if dataset.weights is None:
        return []
    own = "weights" in varying(dataset)
    rows = range(dataset.info.samples if own else 1)
    bad = []
    for i in rows:
        row = dataset.of_sample("weights", i) if own else dataset.weights
        if (row < 0).any() or not row.sum() > 0:
            bad.append(i)
    what = "negative, or zero everywhere"
    return [in_samples("fatal", what, "weights", bad)] if bad else []


def _targets(dataset: Dataset) -> list[Finding]:
    """Find samples whose outputs are the same at all points."""
    channels = dataset.info.outputs
    flat: dict[str, list[int]] = defaultdict(list)
    zero = []
    for i in range(dataset.info.samples):
        row = dataset.of_sample("outputs", i).reshape(-1, len(channels))
        if not row.any():
            zero.append(i)
        elif len(row) > 1:
            for channel in np.flatnonzero((row == row[0]).all(0)):
                flat[channels[channel].name].append(i)
    same = "the same at all points"
    findings = [in_samples("note", same, f"outputs.{name}", at) for name, at in flat.items()]
    if zero:
        what = "zero everywhere, so a relative error has no meaning"
        findings.append(in_samples("fatal", what, "outputs", zero))
    return findings


def _channels(dataset: Dataset) -> list[Finding]:
    """Find channels with one value over all training rows: their standard deviation is zero."""
    info, findings = dataset.info, []
    rows = range(*info.splits.get("train", (0, 0)))
    groups: dict[ArrayName, tuple[str, ...]] = {
        "inputs": tuple(channel.name for channel in info.inputs),
        "params": tuple(channel.name for channel in info.params),
        "outputs": tuple(channel.name for channel in info.outputs),
    }
    for name, channels in groups.items():
        varies = np.zeros(len(channels), bool)
        first: Array | None = None
        for i in rows:
            if varies.all():
                break
            row = dataset.of_sample(name, i).reshape(-1, len(channels))
            first = row[0] if first is None else first
            varies |= (row != first).any(0)
        for channel, moves in zip(channels, varies, strict=True):
            if rows and not moves:
                severity: Severity = "fatal" if name == "outputs" else "note"
                what = "one value in all training rows: zero variance"
                findings.append(Finding(severity, what, f"{name}.{channel}"))
    return findings


def twins(dataset: Dataset) -> list[Finding]:
    """Find samples with the same inputs; between splits they leak the answers."""
    inputs: list[ArrayName] = [n for n in ("inputs", "params", "coords") if n in varying(dataset)]
    split_of = {i: split for split in dataset.info.splits for i in dataset.rows(split)}
    seen: dict[bytes, int] = {}
    repeats: dict[int, int] = {}
    leaks: dict[str, dict[int, int]] = defaultdict(dict)
    for i in range(dataset.info.samples):
        digest = hashlib.blake2b(digest_size=16)
        for name in inputs:
            digest.update(dataset.of_sample(name, i).tobytes())
        if dataset.info.task == "rollout":  # the first frame is what a roll-out starts from
            frames = dataset.of_sample("outputs", i)
            digest.update((frames[0] if dataset.offsets is None else frames[:, 0]).tobytes())
        first = seen.setdefault(digest.digest(), i)
        here, there = split_of.get(i), split_of.get(first)
        if first != i and here == there:
            repeats[i] = first
        elif first != i and here and there:
            leaks[f"splits {there} and {here}"][i] = first
    findings = [
        in_samples("fatal", "the same inputs: a leak", splits, list(pairs), list(pairs.values()))
        for splits, pairs in leaks.items()
    ]
    if repeats:
        what = "the inputs repeat an earlier sample of the same split"
        findings.append(in_samples("note", what, "inputs", list(repeats), list(repeats.values())))
    return findings


LOOKS = (
    _description,
    _sources,
    _values,
    _weights,
    _targets,
    _channels,
    geometry,
    point_order,
    twins,
)
