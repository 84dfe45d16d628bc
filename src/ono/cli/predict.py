"""`ono predict`: apply a trained operator to a user's arrays."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import typer


def predict(
    run: Annotated[
        Path, typer.Argument(help="A run, checkpoint or operator directory.", metavar="RUN")
    ],
    out: Annotated[Path, typer.Option(help="Where to write the prediction, a .npy file.")],
    inputs: Annotated[Path | None, typer.Option(help="Input values, a .npy file.")] = None,
    coords: Annotated[Path | None, typer.Option(help="Points of the inputs, a .npy file.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Quadrature weights of the points, a .npy file.")
    ] = None,
    query: Annotated[
        Path | None, typer.Option(help="Points to predict at, a .npy of [points dim].")
    ] = None,
    chunk: Annotated[int, typer.Option(min=1, help="Query points at a time.")] = 1 << 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Predict output fields from input fields."""
    import numpy as np

    from ono.cli.arrays import read_array
    from ono.data.store import explain_os_errors
    from ono.device import choose_device
    from ono.evaluate.operator import Operator
    from ono.evaluate.predict import predict as evaluate
    from ono.files import replacing

    values = None if inputs is None else read_array(inputs)
    places = None if coords is None else read_array(coords)
    measure = None if weights is None else read_array(weights)
    points = None if query is None else read_array(query)
    operator = Operator.load(run, choose_device(device))
    prediction = evaluate(
        operator, values, coords=places, weights=measure, query=points, chunk=chunk
    )
    # Written by Python rather than by NumPy, which does not say why a write failed.
    np.save(content := io.BytesIO(), prediction.values, allow_pickle=False)
    with explain_os_errors(out), replacing(out) as aside:
        aside.write_bytes(content.getbuffer())
    if prediction.outside:
        typer.echo(
            f"warning: {prediction.outside} points lie outside the box of the training data",
            err=True,
        )
    shape = " ".join(map(str, prediction.values.shape))
    names = ", ".join(f"{c.name} [{c.unit}]" for c in operator.card.outputs)
    typer.echo(f"wrote {out}: {names}, shape [{shape}]")
