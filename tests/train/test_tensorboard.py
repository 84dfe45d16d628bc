from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny

from ono.errors import InputError
from ono.train.loop import fit
from ono.train.tensorboard import tensorboard_listener


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scalars_are_written_for_every_epoch(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tiny.dataset(tmp_path / "data")
    run = tmp_path / "run"
    fit(tiny.recipe(tmp_path / "data", epochs=3), run, [tensorboard_listener(run)])
    written = EventAccumulator(str(run / "tensorboard"))
    written.Reload()
    for name in ("train", "validation", "learning_rate"):
        assert [event.step for event in written.Scalars(name)] == [1, 2, 3]


def test_without_the_extra_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install ono\[track\]"):
        tensorboard_listener(tmp_path)
