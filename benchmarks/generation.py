"""Make benchmarks from physics and say how long it took and how well they were solved.

python benchmarks/generation.py --device cuda                     all six at full size
python benchmarks/generation.py airfoil pipe --size quick --gallery pictures

Results are JSON lines; with `--lines` they are kept, and `benchmarks/tables.py` fills the tables of
the documentation from them. `--warm N` makes N samples before the clock starts, so that libraries
are loaded and kernels compiled.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ono.data.benchmarks import BENCHMARKS, benchmark
from ono.data.generate import make
from ono.data.store import Dataset
from ono.data.task import output_places
from ono.device import choose_device, describe_device


def measure(name: str, args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Make one benchmark and return its line of the table."""
    if args.warm:
        warm = out / f"warm-{name}"
        make(benchmark(name), warm, size=args.size, samples=args.warm, device=args.device)
    began = time.perf_counter()
    data = make(
        benchmark(name),
        out / name,
        size=args.size,
        samples=args.samples,
        seed=args.seed,
        device=args.device,
        batch=args.batch,
    )
    seconds = time.perf_counter() - began
    if args.gallery is not None:
        draw(data, args.gallery / f"{name}.png")
    report = data.info.report
    assert report is not None
    return {
        "benchmark": name,
        "size": args.size,
        "samples": data.info.samples,
        "shape": " x ".join(map(str, data.outputs.shape[1:])),
        "seconds": round(seconds, 1),
        "redrawn": int(np.count_nonzero(report.attempt)),
        "worst residual": f"{max(report.residual):.1e}",
        "iterations": f"{min(report.iterations)} to {max(report.iterations)}",
        "sha256": data.sha256[:12],
        "device": describe_device(args.device),
        "commit": args.commit,
    }


def draw(data: Dataset, file: Path) -> None:
    """Draw three samples of the test split."""
    from ono.report.figures import gallery

    file.parent.mkdir(parents=True, exist_ok=True)
    learned = {"airfoil": ("Mach number", "pressure")}.get(data.info.name)
    outputs = output_places(data, learned)
    gallery(data, data.rows("test")[:3], outputs).savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--size", default="full")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--warm", type=int, default=0, help="samples made before the clock starts")
    parser.add_argument("--gallery", type=Path, help="folder for a picture of each")
    parser.add_argument("--keep", type=Path, help="keep the datasets in this folder")
    parser.add_argument("--lines", type=Path, help="add the results to this file of JSON lines")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    args.device = choose_device(args.device)
    folder = Path(tempfile.mkdtemp()) if args.keep is None else args.keep
    for name in args.names or BENCHMARKS:
        line = measure(name, args, folder)
        print(json.dumps(line), flush=True)
        if args.lines is not None:
            with args.lines.open("a") as file:
                file.write(json.dumps(line) + "\n")
        if args.keep is None:
            shutil.rmtree(folder / name)


if __name__ == "__main__":
    main()
