"""Look through a dataset for what would spoil training or make its errors meaningless."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ono.data.info import SPLITS, Array, ArrayName, layout_problems
from ono.data.store import Dataset

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect: fatal ones forbid training, notes are worth knowing."""

    severity: Literal["fatal", "note"]
    what: str
    where: str
    count: int = 1
    indices: tuple[int, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.indices))
        more = ", ..." if self.count > len(self.indices) else ""
        samples = f" in {self.count} samples: {shown}{more}" if self.indices else ""
        return f"{self.severity}: {self.where}: {self.what}{samples}"


def check(dataset: Dataset) -> list[Finding]:
    """Return all findings, fatal ones first. One sample is in memory at a time.

    Open the dataset with `strict=False` to have wrong shapes listed instead of raised.
    """
    if problems := layout_problems(dataset.info, dataset.arrays):
        return [Finding("fatal", problem, "arrays") for problem in problems]
    findings = [
        finding
        for look in (_description, _values, _weights, _targets, _channels, twins)
        for finding in look(dataset)
    ]
    return sorted(findings, key=lambda finding: finding.severity)


def _finding(severity: Literal["fatal", "note"], what: str, where: str, at: list[int]) -> Finding:
    return Finding(severity, what, where, len(at), tuple(at[:SHOWN]))


def _varying(dataset: Dataset) -> list[ArrayName]:
    """Return the arrays that differ from sample to sample."""
    ragged = dataset.offsets is not None
    shared = {"times", "offsets"} | ({"coords"} if dataset.info.mesh.shared else set())
    if dataset.weights is not None and dataset.weights.ndim == 1 and not ragged:
        shared.add("weights")
    return [name for name in dataset.arrays if name not in shared]


def _row(dataset: Dataset, name: ArrayName, index: int) -> Array:
    array, offsets = dataset.arrays[name], dataset.offsets
    if offsets is None or name == "params":
        return np.asarray(array[index])
    return array[offsets[index] : offsets[index + 1]]


def _first_frame(dataset: Dataset, index: int) -> Array:
    frames = _row(dataset, "outputs", index)
    first: Array = frames[0] if dataset.offsets is None else frames[:, 0]
    return first


def _description(dataset: Dataset) -> list[Finding]:
    """Judge what can be known without reading values."""
    findings = []
    for split in SPLITS:
        if split not in dataset.info.splits:
            severity: Literal["fatal", "note"] = "fatal" if split == "train" else "note"
            findings.append(Finding(severity, "there are no such rows", f"split {split}"))
    for name, array in dataset.arrays.items():
        if name not in ("offsets", "draws") and array.dtype != np.float32:
            what = f"stored as {array.dtype.str}, converted to <f4 when read"
            findings.append(Finding("note", what, name))
        if not array.flags.c_contiguous:
            findings.append(Finding("note", "stored in Fortran order, slow to read by row", name))
    if dataset.info.report is not None:
        failed = [i for i, good in enumerate(dataset.info.report.converged) if not good]
        if failed:
            findings.append(_finding("fatal", "the solver did not converge", "report", failed))
    return findings


def _values(dataset: Dataset) -> list[Finding]:
    """Find values that are not finite."""
    varying, findings = _varying(dataset), []
    for name, array in dataset.arrays.items():
        at, bad = [], 0
        for i in range(dataset.info.samples if name in varying else 1):
            row = _row(dataset, name, i) if name in varying else array
            if missing := int(np.count_nonzero(~np.isfinite(row))):
                at.append(i)
                bad += missing
        if bad and name in varying:
            findings.append(_finding("fatal", f"{bad} values are not finite", name, at))
        elif bad:
            findings.append(Finding("fatal", f"{bad} values are not finite", name))
    return findings


def _weights(dataset: Dataset) -> list[Finding]:
    """Find weights that are no measure: negative somewhere, or zero everywhere."""
    if dataset.weights is None:
        return []
    own = "weights" in _varying(dataset)
    rows = range(dataset.info.samples if own else 1)
    bad = []
    for i in rows:
        row = _row(dataset, "weights", i) if own else dataset.weights
        if (row < 0).any() or not row.sum() > 0:
            bad.append(i)
    what = "negative, or zero everywhere"
    return [_finding("fatal", what, "weights", bad)] if bad else []


def _targets(dataset: Dataset) -> list[Finding]:
    """Find samples whose outputs are the same at all points."""
    channels = dataset.info.outputs
    flat: dict[str, list[int]] = defaultdict(list)
    zero = []
    for i in range(dataset.info.samples):
        row = _row(dataset, "outputs", i).reshape(-1, len(channels))
        if not row.any():
            zero.append(i)
        elif len(row) > 1:
            for channel in np.flatnonzero((row == row[0]).all(0)):
                flat[channels[channel].name].append(i)
    same = "the same at all points"
    findings = [_finding("note", same, f"outputs.{name}", at) for name, at in flat.items()]
    if zero:
        what = "zero everywhere, so a relative error has no meaning"
        findings.append(_finding("fatal", what, "outputs", zero))
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
            row = _row(dataset, name, i).reshape(-1, len(channels))
            first = row[0] if first is None else first
            varies |= (row != first).any(0)
        for channel, moves in zip(channels, varies, strict=True):
            if rows and not moves:
                severity: Literal["fatal", "note"] = "fatal" if name == "outputs" else "note"
                what = "one value in all training rows: zero variance"
                findings.append(Finding(severity, what, f"{name}.{channel}"))
    return findings


def twins(dataset: Dataset) -> list[Finding]:
    """Find samples with the same inputs; between splits they leak the answers."""
    inputs: list[ArrayName] = [n for n in ("inputs", "params", "coords") if n in _varying(dataset)]
    split_of = {i: split for split in dataset.info.splits for i in dataset.rows(split)}
    seen: dict[bytes, int] = {}
    repeats: list[int] = []
    leaks: dict[str, list[int]] = defaultdict(list)
    for i in range(dataset.info.samples):
        digest = hashlib.blake2b(digest_size=16)
        for name in inputs:
            digest.update(_row(dataset, name, i).tobytes())
        if dataset.info.task == "rollout":  # the first frame is what a roll-out starts from
            digest.update(_first_frame(dataset, i).tobytes())
        first = seen.setdefault(digest.digest(), i)
        here, there = split_of.get(i), split_of.get(first)
        if first != i and here == there:
            repeats.append(i)
        elif first != i and here and there:
            leaks[f"splits {there} and {here}"].append(i)
    findings = [_finding("fatal", "the same inputs: a leak", k, at) for k, at in leaks.items()]
    if repeats:
        what = "the inputs repeat an earlier sample of the same split"
        findings.append(_finding("note", what, "inputs", repeats))
    return findings
