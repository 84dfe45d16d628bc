"""Fill the tables of the documentation from the kept results.

python benchmarks/tables.py            rewrite docs/*.md
python benchmarks/tables.py --check    fail if a table is not what the results say

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME.jsonl in benchmarks/results
holds its lines, and COLUMNS says what is shown.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COLUMNS = {
    "generation": (
        "benchmark",
        "samples",
        "shape",
        "seconds",
        "redrawn",
        "worst residual",
        "iterations",
        "commit",
    ),
    "validation": ("benchmark", "check", "measured", "bound"),
    "foreign": ("kind", "import", "epochs", "trained in s", "test error", "commit"),
    "capabilities": (
        "model",
        "darcy",
        "ns2d",
        "airfoil",
        "pipe",
        "elasticity",
        "plasticity",
        "other grids",
        "queries on grids",
        "queries in clouds",
        "ragged clouds",
    ),
    "peers": (
        "benchmark",
        "model",
        "parameters",
        "epochs",
        "test error",
        "spread",
        "mean predictor",
        "commit",
    ),
    "speed": ("benchmark", "model", "parameters", "batch", "ms/step", "samples/s", "peak GiB"),
    "quick": ("benchmark", "epochs", "trained in s", "test error", "mean predictor", "commit"),
    "steps": (
        "recipe",
        "step",
        "batch",
        "ms/step",
        "samples/s",
        "floor ms",
        "% of floor",
        "× paper form, eager",
        "peak GiB",
        "commit",
    ),
    "nystrom": (
        "recipe",
        "lower attention",
        "landmarks",
        "step",
        "batch",
        "ms/step",
        "peak GiB",
        "commit",
    ),
    "landmarks": ("recipe", "changes", "epochs", "trained in s", "test error", "commit"),
    "precision": ("recipe", "precision", "epochs", "seeds", "test error", "spread", "commit"),
    "training": (
        "recipe",
        "changes",
        "epochs",
        "trained in s",
        "start to report s",
        "test error",
        "commit",
    ),
    "inference": (
        "recipe",
        "call",
        "points",
        "batch",
        "chunk",
        "ms/call",
        "points/s",
        "peak GiB",
        "commit",
    ),
    "other_gpus": (
        "compute capability",
        "precision",
        "kernels",
        "largest",
        "its KiB",
        "KiB there are",
        "reading unset registers",
        "triton",
        "commit",
    ),
    "orthogonalisation": ("form", "ortho", "none", "commit"),
    "airfoil_coords": ("recipe", "changes", "epochs", "test error", "mean predictor", "commit"),
    "first_look": (
        "recipe",
        "changes",
        "epochs",
        "test error",
        "mean predictor",
        "constant",
        "commit",
    ),
    "darcy_local": ("model", "epochs", "test errors", "commit"),
    "quick_surroundings": ("benchmark", "epochs", "without", "test error", "commit"),
    "surroundings": ("changes", "29²", "43²", "85²", "trained in s", "commit"),
    "memory": ("options", "GiB", "commit"),
    "memory_gpu": ("options", "GiB", "commit"),
    "memory_errors": ("options", "test error", "CPU seconds", "commit"),
    "memory_streaming": ("points taken", "points", "GiB", "bytes a point", "commit"),
    "memory_streaming_gpu": ("points taken", "points", "GiB", "bytes a point"),
    "cpu": (
        "recipe",
        "threads",
        "paper form, samples/s",
        "paper form, run by ono, × paper form",
        "eager, samples/s",
        "eager, × paper form",
        "compiled, samples/s",
        "compiled, × paper form",
        "commit",
    ),
}
COLUMNS["precision_peers"] = COLUMNS["precision"]
COLUMNS["inference_cpu"] = tuple(c for c in COLUMNS["inference"] if c != "peak GiB")
_WITHOUT_PAPER_FORM = tuple(c for c in COLUMNS["steps"] if "paper form" not in c)
COLUMNS |= dict.fromkeys(("steps_one_set", "steps_bf16_peers"), _WITHOUT_PAPER_FORM)
REGION = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.S)


def step(line: dict[str, Any]) -> dict[str, str]:
    """Return a line of `ono bench speed` as the columns of its table."""
    speedup, peak = line["speedup"], line["peak_bytes"]
    return {
        "recipe": line["recipe"],
        "lower attention": _chosen(line, "model.lower.attention") or "efficient",
        "landmarks": _chosen(line, "model.lower.landmarks"),
        "step": f"{line['form']} {line['precision']} {line['kernels']}",
        "batch": line["batch"],
        "ms/step": f"{line['milliseconds']:.2f}",
        "samples/s": f"{line['samples_per_second']:.0f}",
        "floor ms": f"{line['floor_milliseconds']:.3g}",
        "% of floor": f"{100 * line['share_of_floor']:.3g}",
        "× paper form, eager": "" if speedup is None else f"{speedup:.1f}",
        "peak GiB": "" if peak is None else f"{peak / 2**30:.2f}",
        "commit": line["commit"],
    }


def _chosen(line: dict[str, Any], option: str) -> str:
    """Return what a line was measured with; nothing if that was left as it is."""
    changes = dict(change.split("=", 1) for change in line["set"])
    return str(changes.get(option, ""))


def call(line: dict[str, Any]) -> dict[str, str]:
    """Return a line of `ono bench inference` as the columns of its table."""
    rate = 1000 * line["points"] * line["batch"] / line["milliseconds"]
    return {
        "recipe": line["recipe"],
        "call": line.get("form", "eager"),
        "points": line["points"],
        "batch": line["batch"],
        "chunk": line["chunk"] or "",
        "ms/call": f"{line['milliseconds']:.4g}",
        "points/s": f"{rate:.2g}",
        "peak GiB": "" if line["peak_bytes"] is None else f"{line['peak_bytes'] / 2**30:.2f}",
        "commit": line["commit"],
    }


FORMS = {
    "steps": step,
    "steps_one_set": step,
    "steps_bf16_peers": step,
    "nystrom": step,
    "inference": call,
    "inference_cpu": call,
}


def table(name: str) -> str:
    """Return the kept lines of a result as a Markdown table."""
    lines = [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]
    if name in FORMS:
        lines = [FORMS[name](line) for line in lines]
    columns = COLUMNS[name]
    rows: list[Any] = [columns, ["---"] * len(columns)]
    rows += [[line.get(column, "") for column in columns] for line in lines]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def filled(text: str) -> str:
    """Return a page with its tables as the results are now."""
    return REGION.sub(lambda found: found[1] + table(found[2]) + found[3], text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        before = page.read_text()
        after = filled(before)
        if before != after:
            stale.append(page.name)
            if not args.check:
                page.write_text(after)
    if stale and args.check:
        sys.exit(f"stale tables in {', '.join(stale)}: run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
