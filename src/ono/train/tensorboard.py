"""Send the metrics of a run to TensorBoard (extra `track`)."""

from __future__ import annotations

from pathlib import Path

from ono.errors import InputError
from ono.train.state import Event, Listener


def tensorboard_listener(path: Path) -> Listener:
    """Return a listener that writes event files into the run directory."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "train.tensorboard=true needs TensorBoard; install it with `pip install ono[track]`"
        ) from None
    writer: SummaryWriter | None = None

    def listen(event: Event) -> None:
        nonlocal writer
        if event.kind == "epoch":
            writer = writer or SummaryWriter(str(path / "tensorboard"))
            for name in ("train", "validation", "learning_rate"):
                if name in event.details:
                    writer.add_scalar(name, event.details[name], event.state.epoch)
        elif event.kind == "end" and writer is not None:
            writer.close()

    return listen
