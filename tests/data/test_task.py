from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from ono.data.store import Dataset
from ono.data.task import views
from ono.errors import DataError


@pytest.mark.parametrize(
    ("maker", "way_out"),
    [
        ("darcy", "make more with `ono data make darcy --samples`"),
        ("import", "ask for fewer, or import more"),
        ("published files", "ask for fewer, or import more"),
    ],
)
def test_too_few_samples_name_the_way_to_more(tmp_path: Path, maker: str, way_out: str) -> None:
    data = tiny.dataset(tmp_path / "data")
    source = data.info.provenance.model_copy(update={"maker": maker})
    data = Dataset(data.path, data.info.model_copy(update={"provenance": source}), data.arrays)
    with pytest.raises(DataError) as caught:
        views(data, limits={"train": 3000})
    message = f"data.train asks for 3000 samples, {data.path} has 12; {way_out}"
    assert str(caught.value) == message
