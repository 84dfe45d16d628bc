"""Files for a prediction, read as an import reads them: many for a role, axes in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ono.data.array_files import parse_source, read_array
from ono.data.array_roles import find_axes, join, read_roles
from ono.data.info import Array
from ono.data.layout import Axes, Role, parse_layout, space
from ono.data.told_layouts import is_plain
from ono.errors import InputError
from ono.evaluate.card import Card


@dataclass(frozen=True, slots=True)
class GivenArrays:
    """Arrays in the order of axes that `predict` takes; known frames are `outputs`.

    `layouts` is what is known of the axes of any role, `axes` how the files were read, where that
    had to be found out. `bare` means that no field had an axis of channels; None leaves it to
    `predict`.
    """

    arrays: Mapping[Role, Array]
    layouts: Mapping[Role, Axes]
    axes: Mapping[Role, Axes]
    bare: bool | None


def read_files(
    card: Card, files: Mapping[Role, Sequence[str]], said: Mapping[Role, Axes]
) -> GivenArrays:
    """Read the files of each role. One alone whose axes nothing is known of is taken as it is."""
    trained = {role: axes for role, axes in card.layouts.items() if not is_plain(axes.split())}
    layouts = _known_layouts(trained, said)
    given = {role: texts for role, texts in files.items() if texts}
    if all(len(texts) == 1 and role not in layouts for role, texts in given.items()):
        single = {role: read_array(*parse_source(texts[0])) for role, texts in given.items()}
        return GivenArrays(single, layouts, {}, None)
    counts: dict[Role, int] = {"inputs": len(card.inputs), "outputs": len(card.outputs)}
    try:
        sources, found = find_axes(
            read_roles(given),
            layouts,
            mesh=card.mesh.kind,
            times=card.history if "outputs" in given else None,
            channels={role: count for role, count in counts.items() if count},
        )
    except InputError as error:
        taken = [
            f"{role} [{trained[role]}]" for role in given if role in trained and role not in said
        ]
        told = ", ".join(taken)
        hint = f"; axes are read as in training, {told}, unless --layout says otherwise"
        raise InputError(f"{error}{hint if taken else ''}") from None
    arrays = {role: join(group, found) for role, group in sources.items() if group}
    axes = {
        role: max((found[source.named] for source in group), key=len)
        for role, group in sources.items()
        if group
    }
    if "weights" in arrays:
        arrays["weights"] = arrays["weights"][..., 0]
    fields = [axes[role] for role in counts if role in axes]
    bare = not any("c" in one for one in fields) if fields else None
    return GivenArrays(arrays, layouts, axes, bare)


def _known_layouts(trained: Mapping[Role, str], said: Mapping[Role, Axes]) -> dict[Role, Axes]:
    """Return the axes of each role: as they are said, else as they were in training."""
    for role, axes in said.items():
        if role in ("inputs", "outputs") and ("b" not in axes or not space(axes)):
            raise InputError(
                f"layout `{' '.join(axes)}` of {role} needs b (samples), and x y z (grid axes) or "
                "p (points)"
            )
    return {role: parse_layout(text) for role, text in trained.items()} | dict(said)
