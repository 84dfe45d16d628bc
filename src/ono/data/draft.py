"""A dataset read from foreign files, held in memory until all of it is known to be sound."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ono.data.check import Finding, check
from ono.data.info import (
    SPLITS,
    Array,
    ArrayName,
    Channel,
    Info,
    Mesh,
    Provenance,
    Scalar,
    Split,
    Task,
    layout_problems,
)
from ono.data.layout import Role
from ono.data.plan import Splits
from ono.data.sources import SOURCES_FILE, Sources
from ono.data.store import Dataset, explain_os_errors, write_dataset
from ono.errors import DataError, InputError
from ono.files import write_text

DEFAULT_SPLITS = "0.8/0.1/0.1"


@dataclass(frozen=True, slots=True)
class Draft:
    """What was understood of foreign files; `notes` are remarks for the user."""

    task: Task
    mesh: Mesh
    inputs: tuple[Channel, ...]
    outputs: tuple[Channel, ...]
    params: tuple[Channel, ...]
    samples: int
    arrays: Mapping[ArrayName, Array] = field(repr=False)
    settings: Mapping[str, Scalar]
    notes: tuple[str, ...] = ()
    sources: Sources | None = None

    def info(self, name: str, splits: Splits, seed: int | None = None) -> Info:
        """Describe the dataset this draft becomes."""
        return Info(
            name=name,
            task=self.task,
            mesh=self.mesh,
            inputs=self.inputs,
            outputs=self.outputs,
            params=self.params,
            samples=self.samples,
            splits=splits,
            provenance=Provenance(
                maker="import", seed=seed, note="; ".join(self.notes), settings=dict(self.settings)
            ),
        )

    def dataset(self, path: Path, name: str, splits: str, shuffle: int | None) -> Dataset:
        """Return the dataset in memory, as if it lay at `path`."""
        self._refuse_what_cannot_be()
        arrays = {n: np.ascontiguousarray(a) for n, a in self.arrays.items()}
        info = self.info(name, parse_splits(splits, self.samples), shuffle)
        if problems := layout_problems(info, arrays):
            raise DataError(f"these arrays make no dataset: {'; '.join(problems)}")
        return Dataset(path, info, arrays)

    def _refuse_what_cannot_be(self) -> None:
        for role, channels in (
            ("inputs", self.inputs),
            ("outputs", self.outputs),
            ("params", self.params),
        ):
            names = [channel.name for channel in channels]
            if twice := [name for k, name in enumerate(names) if name in names[:k]]:
                raise InputError(
                    f"{role} has {twice[0]!r} twice ({', '.join(names)}); give every channel a "
                    f"name of its own with --names {role}=a,b"
                )
        if self.task == "rollout" and (frames := len(self.arrays["times"])) < 2:
            raise InputError(
                f"a roll-out starts from one frame and predicts the next; got {frames} frame"
            )

    def renamed(self, names: Mapping[Role, tuple[Channel, ...]]) -> Draft:
        """Return the draft with other channel names, one for each channel of a role."""
        draft = self
        for role, channels in names.items():
            if role != "inputs" and role != "outputs" and role != "params":
                raise InputError(f"--names is for inputs, outputs and params, got {role}")
            known: tuple[Channel, ...] = getattr(draft, role)
            if len(known) != len(channels):
                had = ", ".join(channel.name for channel in known) or "none"
                raise InputError(f"--names {role} has {len(channels)} names for the channels {had}")
            draft = replace(draft, **{role: channels})  # type: ignore[arg-type]
            if draft.sources is not None and role != "params":
                fields = [
                    field.model_copy(update={"channel": channel.name})
                    for field, channel in zip(getattr(draft.sources, role), channels, strict=True)
                ]
                sources = draft.sources.model_copy(update={role: tuple(fields)})
                draft = replace(draft, sources=sources)
        return draft

    def shuffled(self, seed: int | None) -> Draft:
        """Return the samples in random order; without a seed, in the order of the files."""
        if seed is None:
            return replace(self, notes=(*self.notes, "samples in file order"))
        order = np.random.Generator(np.random.Philox(seed)).permutation(self.samples)
        arrays: dict[ArrayName, Array] = {}
        offsets = self.arrays.get("offsets")
        whole = {"times", "offsets"} | ({"coords"} if self.mesh.shared else set())
        for name, array in self.arrays.items():
            one_for_all = name == "weights" and self.mesh.shared and array.ndim == 1
            if name in whole or one_for_all:
                arrays[name] = array
            elif offsets is not None and name != "params":
                parts = [array[offsets[i] : offsets[i + 1]] for i in order]
                arrays[name] = np.concatenate(parts)
            else:
                arrays[name] = array[order]
        if offsets is not None:
            arrays["offsets"] = np.concatenate(([0], np.cumsum(np.diff(offsets)[order])))
        sources = self.sources
        if sources is not None:
            rows = tuple(sources.rows[i] for i in order)
            sources = sources.model_copy(update={"rows": rows})
        notes = (*self.notes, f"samples shuffled with seed {seed}")
        return replace(self, arrays=arrays, sources=sources, notes=notes)


def parse_splits(text: str, samples: int) -> Splits:
    """Read shares such as `0.8/0.1/0.1` or counts such as `800/100/100`; a zero is left out.

    Counts may leave rows at the end unused; shares may not.

    >>> parse_splits("0.8/0.1/0.1", 10)
    {'train': (0, 8), 'validation': (8, 9), 'test': (9, 10)}
    >>> parse_splits("6/0/2", 10)
    {'train': (0, 6), 'test': (6, 8)}
    """
    from ono.data.benchmarks import split_rows

    try:
        numbers = [float(part) for part in text.split("/")]
    except ValueError:
        numbers = []
    if len(numbers) != 3 or min(numbers) < 0 or not 0 < sum(numbers) < float("inf"):
        raise InputError(
            f"splits must be train/validation/test such as {DEFAULT_SPLITS} or 800/100/100, "
            f"got {text!r}"
        )
    named: dict[Split, float] = {s: n for s, n in zip(SPLITS, numbers, strict=True) if n > 0}
    if abs(sum(numbers) - 1) < 1e-9:
        return split_rows({split: round(1e6 * share) for split, share in named.items()}, samples)
    if any(count != int(count) for count in numbers):
        raise InputError(f"the shares of --splits must add up to 1, {text} gives {sum(numbers):g}")
    if sum(numbers) > samples:
        raise InputError(f"--splits {text} asks for {sum(numbers):g} samples, there are {samples}")
    return split_rows({split: int(count) for split, count in named.items()})


def refuse_fatal(findings: list[Finding], files: Sequence[str] = ()) -> None:
    """Raise an error that lists the fatal findings, if there are any; `files` are the samples'."""
    if fatal := [finding.told(files) for finding in findings if finding.severity == "fatal"]:
        listed = "\n  ".join(fatal)
        raise DataError(
            f"nothing was written, the data cannot be trained on:\n  {listed}\n"
            "repair or leave out these samples"
        )


def refuse_existing(out: Path) -> None:
    """Raise an error if something lies where a dataset is to be written."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} already exists; choose another --out or remove it")


def write(dataset: Dataset, sources: Sources | None = None) -> Dataset:
    """Check a dataset in memory and store it: all of it or nothing."""
    out = dataset.path
    refuse_existing(out)
    refuse_fatal(check(dataset), () if sources is None else sources.files)
    aside = out.resolve().with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        write_dataset(aside, dataset.info, dataset.arrays, called=out)
        with explain_os_errors(aside, out):
            if sources is not None:
                write_text(aside / SOURCES_FILE, sources.model_dump_json(indent=1) + "\n")
            aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Dataset.open(out)
