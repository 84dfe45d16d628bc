"""Results as JSON lines: printed as they come, and kept if a file is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def keep(line: Mapping[str, Any], file: Path | None) -> None:
    """Print a result and add it to a file of JSON lines."""
    text = json.dumps(line)
    print(text, flush=True)
    if file is not None:
        with file.open("a") as lines:
            lines.write(text + "\n")
