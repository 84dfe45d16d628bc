"""`ono data import`: turn official files, a user's arrays or a folder of meshes into a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ono.errors import InputError, nearest

if TYPE_CHECKING:
    from ono.data.draft import Draft
    from ono.data.info import Channel
    from ono.data.layout import Axes, Role
    from ono.data.store import Dataset

Word = TypeVar("Word", bound=str)

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
        list[str] | None, typer.Option(help=f"Points, FILE[:KEY]. {_MANY} one a coordinate.")
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
        str, typer.Option(help="train/validation/test as shares or counts.")
    ] = "0.8/0.1/0.1",
    shuffle: Annotated[
        int | None, typer.Option(help="Seed of a random order; without, file order.")
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
    from ono.data.draft import refuse_existing, write

    if out is None and not dry_run:
        raise InputError("say where to write the dataset with --out, or use --dry-run")
    if benchmark is not None:
        if inputs or outputs or coords or params or layout or names:
            raise InputError(f"the files of {benchmark} are known; give only --from and --out")
        _import_official(benchmark, source, out, dry_run)
        return
    place = Path("import") if out is None else out
    if not dry_run:
        refuse_existing(place)
    if source is not None and _holds_meshes(source):
        for option, value in (("coords", coords), ("times", times), ("weights", weights)):
            if value:
                raise InputError(f"--{option} is read from the mesh files; leave it out")
        if layout or mesh or periodic or task not in (None, "steady"):
            raise InputError("mesh files are steady clouds; leave out --layout, --mesh and --task")
        draft = _read_meshes(source, inputs, outputs, params, names)
    else:
        from ono.data.importers import MESHINGS, TASKS, Request, read_arrays

        request = Request(
            outputs=_sources(source, outputs),
            inputs=_sources(source, inputs),
            coords=_sources(source, coords),
            params=_sources(source, params),
            times=_source(source, times),
            weights=_source(source, weights),
            layouts=_layouts(layout or []),
            names=_names(names or []),
            task=_choice("task", task, TASKS),
            mesh=_choice("mesh", mesh, MESHINGS),
            periodic=periodic,
        )
        draft = read_arrays(request)
    draft = draft.shuffled(shuffle)
    dataset = draft.dataset(place, name or place.resolve().name, splits, shuffle)
    if dry_run:
        _explain(dataset, Path("preview.png") if preview is None else preview)
        return
    stored = write(dataset, draft.sources)
    order = "in file order" if shuffle is None else f"shuffled with seed {shuffle}"
    counts = stored.summary()["splits"]
    typer.echo(f"imported {stored.path}: {stored.info.samples} samples {order} ({counts})")
    typer.echo(f"sha256 {stored.sha256[:12]}; look at it with `ono data show {stored.path}`")


def _import_official(name: str, source: Path | None, out: Path | None, dry_run: bool) -> None:
    from ono.cli.progress import counting
    from ono.data.official import read_official

    if source is None:
        raise InputError(f"say where the files of {name} lie with --from DIR")
    if dry_run or out is None:
        raise InputError("official files are known: leave out --dry-run and give --out")
    doubts: list[str] = []
    with counting(f"reading {name}") as progress:
        dataset = read_official(name, source, out, warnings=doubts, progress=progress)
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
        return False
    found = {path.suffix.lower() for path in source.iterdir()}
    return bool(found & set(MESHES)) or not found & set(ARRAYS)


def _read_meshes(
    source: Path,
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    params: Sequence[str] | None,
    names: Sequence[str] | None,
) -> Draft:
    from ono.data.mesh_folder import read_mesh_folder

    def words(texts: Sequence[str] | None) -> list[str]:
        return [word for text in texts or [] for word in text.split(",") if word]

    draft = read_mesh_folder(
        source, inputs=words(inputs), outputs=words(outputs), params=words(params)
    )
    return draft.renamed(_names(names or []))


def _source(base: Path | None, text: str | None) -> str | None:
    """Complete a source: a key of the file given by --from, or a file in the folder given."""
    if text is None or base is None:
        return text
    if base.is_dir():
        return str(base / text)
    return text if Path(text.split(":")[0]).exists() else f"{base}:{text}"


def _sources(base: Path | None, texts: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(full for text in texts or [] if (full := _source(base, text)) is not None)


def _layouts(texts: Sequence[str]) -> dict[Role, Axes]:
    """Read `--layout`: a plain one is for inputs and outputs, `role=` for that role."""
    from ono.data.layout import parse_layout

    plain = [text for text in texts if "=" not in text]
    layouts: dict[Role, Axes] = {}
    for text in plain:
        layouts["inputs"] = layouts["outputs"] = parse_layout(text)
    for text in texts:
        if "=" in text:
            role, _, axes = text.partition("=")
            layouts[_role(role)] = parse_layout(axes)
    return layouts


def _names(texts: Sequence[str]) -> dict[Role, tuple[Channel, ...]]:
    from ono.data.importers import parse_channels

    names: dict[Role, tuple[Channel, ...]] = {}
    for text in texts:
        role, equals, channels = text.partition("=")
        if not equals:
            raise InputError(f"--names is ROLE=name,name such as outputs=pressure, got {text!r}")
        if role.strip() not in ("inputs", "outputs", "params"):
            hint = nearest(role, ("inputs", "outputs", "params"))
            raise InputError(f"--names is for inputs, outputs or params, got {role!r}; {hint}")
        names[_role(role)] = parse_channels(channels)
    return names


def _role(text: str) -> Role:
    roles: tuple[Role, ...] = ("inputs", "outputs", "coords", "params", "weights")
    for role in roles:
        if role == text.strip():
            return role
    raise InputError(f"no array is called {text!r}; {nearest(text, roles)}")


def _choice(option: str, value: str | None, known: tuple[Word, ...]) -> Word | None:
    if value is None:
        return None
    for word in known:
        if word == value:
            return word
    raise InputError(f"--{option} has no choice {value!r}; {nearest(value, known)}")


def _explain(dataset: Dataset, picture: Path) -> None:
    """Print what was understood and what is wrong with it, and draw some samples."""
    from ono.data.check import check
    from ono.data.store import explain_os_errors
    from ono.data.summary import describe
    from ono.files import replacing
    from ono.report.figures import gallery

    for line in describe(dataset):
        typer.echo(line)
    findings = check(dataset)
    for finding in findings:
        typer.echo(str(finding))
    rows = range(min(3, dataset.info.samples))
    with explain_os_errors(picture), replacing(picture) as aside:
        gallery(dataset, rows).savefig(aside, format="png")
    typer.echo(f"dry run: only {picture} was written, with {len(rows)} samples")
    if any(finding.severity == "fatal" for finding in findings):
        raise typer.Exit(2)
