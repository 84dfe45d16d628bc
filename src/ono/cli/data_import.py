"""`ono data import`: turn official files, a user's arrays or a folder of meshes into a dataset."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ono.cli.options import choice, refuse, refuse_no_picture
from ono.errors import InputError

if TYPE_CHECKING:
    from ono.data.draft import Draft
    from ono.data.store import Dataset

_MANY = "Repeat for several."


def import_data(
    benchmark: Annotated[
        str | None, typer.Argument(help="A benchmark whose official files to read.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Folder of official or mesh files, or one file of arrays."),
    ] = None,
    inputs: Annotated[
        list[str] | None, typer.Option(help=f"FILE[:KEY], or fields of mesh files. {_MANY}")
    ] = None,
    outputs: Annotated[
        list[str] | None, typer.Option(help=f"FILE[:KEY], or fields of mesh files. {_MANY}")
    ] = None,
    coords: Annotated[
        list[str] | None, typer.Option(help="Points, FILE[:KEY]. Repeat for one list a coordinate.")
    ] = None,
    params: Annotated[
        list[str] | None, typer.Option(help=f"Numbers of a sample, FILE[:KEY] or .csv. {_MANY}")
    ] = None,
    times: Annotated[str | None, typer.Option(help="When the outputs are, FILE[:KEY].")] = None,
    weights: Annotated[str | None, typer.Option(help="Quadrature weights, FILE[:KEY].")] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(help='Axes such as "b x y c", or outputs="b t x y c".'),
    ] = None,
    names: Annotated[
        list[str] | None, typer.Option(help='Channels such as outputs="pressure [Pa],speed".')
    ] = None,
    task: Annotated[str | None, typer.Option(help="steady, timed or rollout.")] = None,
    mesh: Annotated[str | None, typer.Option(help="grid, structured or cloud.")] = None,
    periodic: Annotated[bool, typer.Option("--periodic", help="The grid has no ends.")] = False,
    splits: Annotated[
        str | None,
        typer.Option(help="train/validation/test as shares or counts. Default: 0.8/0.1/0.1."),
    ] = None,
    shuffle: Annotated[
        int | None, typer.Option(min=0, help="Seed of a random order; without, file order.")
    ] = None,
    validation: Annotated[
        int | None, typer.Option(min=0, help="Official files: how many samples to hold out.")
    ] = None,
    pairing: Annotated[
        str | None, typer.Option(help="Official plasticity: by-x (default) or released.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Default: the name of --out.")] = None,
    out: Annotated[Path | None, typer.Option(help="The dataset directory to write.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say and draw what was understood.")
    ] = False,
    preview: Annotated[
        Path | None, typer.Option(help="Where a dry run draws. Default: preview.png.")
    ] = None,
) -> None:
    """Import official files, your arrays, or a folder of mesh files."""
    arrays = _Arrays(
        inputs, outputs, coords, params, times, weights, layout, names, task, mesh, periodic
    )
    if out is None and not dry_run:
        raise InputError("say where to write the dataset with --out, or use --dry-run")
    if benchmark is not None:
        refuse(
            f"the files of {benchmark} are known",
            **arrays.options(),
            splits=splits,
            shuffle=shuffle,
            name=name,
            preview=preview,
        )
        _import_official(benchmark, source, out, dry_run, validation, pairing)
        return
    refuse("it is for official files", validation=validation, pairing=pairing)
    _import_own(source, arrays, _Store(splits, shuffle, name, out, dry_run, preview))


@dataclass(frozen=True, slots=True)
class _Arrays:
    """What the options say about the user's files: which are what, and how to read them."""

    inputs: list[str] | None
    outputs: list[str] | None
    coords: list[str] | None
    params: list[str] | None
    times: str | None
    weights: str | None
    layout: list[str] | None
    names: list[str] | None
    task: str | None
    mesh: str | None
    periodic: bool

    def options(self) -> dict[str, object]:
        """Return them by name; one that was not given is None."""
        return {**asdict(self), "periodic": self.periodic or None}


@dataclass(frozen=True, slots=True)
class _Store:
    """What the options say about the dataset to write, or only to show."""

    splits: str | None
    shuffle: int | None
    name: str | None
    out: Path | None
    dry_run: bool
    preview: Path | None


def _import_own(source: Path | None, arrays: _Arrays, store: _Store) -> None:
    """Read arrays or mesh files, then say what was understood, or write it."""
    from ono.data.draft import DEFAULT_SPLITS, refuse_existing, write
    from ono.data.summary import origins

    place, shuffle = store.out or Path("import"), store.shuffle
    if not store.dry_run:
        refuse("it is where a --dry-run draws", preview=store.preview)
        refuse_existing(place)
    refuse_no_picture("preview", store.preview)
    if source is not None and _holds_meshes(source):
        draft = _read_meshes(source, arrays)
    else:
        draft = _read_arrays(source, arrays)
    draft = draft.shuffled(shuffle)
    name, splits = store.name or place.resolve().name, store.splits or DEFAULT_SPLITS
    dataset = draft.dataset(place, name, splits, shuffle)
    _warn_of_missing_splits(dataset)
    if store.dry_run:
        files = () if draft.sources is None else draft.sources.files
        _explain(dataset, store.preview or Path("preview.png"), files)
        return
    stored = write(dataset, draft.sources)
    for line in origins(stored):
        typer.echo(line)
    order = "in file order" if shuffle is None else f"shuffled with seed {shuffle}"
    counts = stored.summary()["splits"]
    typer.echo(f"imported {stored.path}: {stored.info.samples} samples {order} ({counts})")
    look = shlex.join(("ono", "data", "show", str(stored.path)))
    typer.echo(f"sha256 {stored.sha256[:12]}; look at it with `{look}`")


def _read_arrays(source: Path | None, given: _Arrays) -> Draft:
    from ono.cli.array_options import read_layouts, read_names, read_source, read_sources
    from ono.data.importers import MESHINGS, TASKS, Request, read_arrays

    request = Request(
        outputs=read_sources(source, given.outputs),
        inputs=read_sources(source, given.inputs),
        coords=read_sources(source, given.coords),
        params=read_sources(source, given.params),
        times=read_source(source, given.times),
        weights=read_source(source, given.weights),
        layouts=read_layouts(given.layout or []),
        names=read_names(given.names or []),
        task=choice("task", given.task, TASKS),
        mesh=choice("mesh", given.mesh, MESHINGS),
        periodic=given.periodic,
    )
    return read_arrays(request)


def _warn_of_missing_splits(dataset: Dataset) -> None:
    missing = [split for split in ("validation", "test") if split not in dataset.info.splits]
    if missing:
        typer.echo(
            f"warning: no samples for {' and '.join(missing)}; `ono train` needs both: see "
            "--splits",
            err=True,
        )


def _import_official(
    name: str,
    source: Path | None,
    out: Path | None,
    dry_run: bool,
    validation: int | None,
    pairing: str | None,
) -> None:
    from ono.cli.progress import counting
    from ono.data.official import PAIRINGS, read_official

    if source is None:
        raise InputError(f"say where the files of {name} lie with --from DIR")
    if dry_run or out is None:
        raise InputError("official files are known: leave out --dry-run and give --out")
    doubts: list[str] = []
    with counting(f"reading {name}") as progress:
        dataset = read_official(
            name,
            source,
            out,
            pairing=choice("pairing", pairing, PAIRINGS) or "by-x",
            validation=validation,
            warnings=doubts,
            progress=progress,
        )
    for doubt in doubts:
        typer.echo(f"warning: {doubt}", err=True)
    typer.echo(f"imported {out}: {dataset.info.samples} samples, sha256 {dataset.sha256[:12]}")


def _holds_meshes(source: Path) -> bool:
    """Tell a folder of mesh files from one of arrays; one with neither counts as meshes."""
    from ono.data.array_files import SUFFIXES as ARRAYS
    from ono.data.mesh_folder import SUFFIXES as MESHES

    if not source.exists():
        raise InputError(f"there is no {source}")
    if not source.is_dir():
        if source.suffix.lower() in MESHES:
            raise InputError(
                f"{source} is one mesh file, and samples are many: give the folder that holds "
                f"them, --from {shlex.quote(str(source.parent))}"
            )
        return False
    found = {path.suffix.lower() for path in source.iterdir() if path.name[0] != "."}
    return bool(found & set(MESHES)) or not found & set(ARRAYS)


def _read_meshes(source: Path, given: _Arrays) -> Draft:
    from ono.cli.array_options import read_names
    from ono.data.mesh_folder import read_mesh_folder

    refuse("the mesh files say it", coords=given.coords, times=given.times, weights=given.weights)
    if given.layout or given.mesh or given.periodic or given.task not in (None, "steady"):
        raise InputError("mesh files are steady clouds; leave out --layout, --mesh and --task")

    def words(texts: Sequence[str] | None) -> list[str]:
        return [name for text in texts or [] for word in text.split(",") if (name := word.strip())]

    draft = read_mesh_folder(
        source,
        inputs=words(given.inputs),
        outputs=words(given.outputs),
        params=words(given.params),
    )
    return draft.renamed(read_names(given.names or []))


def _explain(dataset: Dataset, picture: Path, files: Sequence[str]) -> None:
    """Print what was understood and what is wrong with it, and draw some samples.

    `files` are the names of mesh files, one for each sample.
    """
    from ono.data.check import check
    from ono.data.store import explain_os_errors
    from ono.data.summary import describe
    from ono.files import replacing
    from ono.report.figures import gallery

    for line in describe(dataset):
        typer.echo(line)
    findings = check(dataset)
    for finding in findings:
        typer.echo(finding.told(files))
    rows = range(min(3, dataset.info.samples))
    with explain_os_errors(picture), replacing(picture) as aside:
        gallery(dataset, rows).savefig(aside, format="png")
    typer.echo(f"dry run: only {picture} was written, with {len(rows)} samples")
    if any(finding.severity == "fatal" for finding in findings):
        raise typer.Exit(2)
