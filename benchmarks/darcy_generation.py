"""Time the draw and the solve of Darcy samples, and making a dataset of them on disk.

OMP_NUM_THREADS=2 python benchmarks/darcy_generation.py --samples 1200 --nodes 85 --store quick
python benchmarks/darcy_generation.py --samples 1200 --nodes 421 --device cuda --store full
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ono.data.benchmarks import benchmark
from ono.data.generate import make
from ono.physics import darcy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=1200)
    parser.add_argument("--nodes", type=int, default=85)
    parser.add_argument("--batch", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="that draw")
    parser.add_argument("--store", help="also make the dataset of this size on disk")
    args = parser.parse_args()
    device = torch.device(args.device)

    darcy.solve(torch.ones(2, args.nodes, args.nodes, device=device))  # libraries load once
    draw_time = solve_time = 0.0
    iterations: list[int] = []
    worst, failed = 0.0, 0
    draw = partial(darcy.coefficient, args.seed, nodes=args.nodes)
    with ThreadPoolExecutor(args.threads) as pool:
        for start in range(0, args.samples, args.batch):
            began = time.perf_counter()
            rows = range(start, min(start + args.batch, args.samples))
            drawn = np.stack(list(pool.map(draw, rows)))
            between = time.perf_counter()
            solution = darcy.solve(torch.from_numpy(drawn).to(device))
            iterations += solution.iterations.tolist()  # waits for the device
            worst = max(worst, float(solution.residual.max()))
            failed += int((~solution.converged).sum())
            draw_time += between - began
            solve_time += time.perf_counter() - between

    print(
        f"{args.samples} samples, {args.nodes}² nodes, {device}, {torch.get_num_threads()} threads"
    )
    print(f"draw  {draw_time:7.2f} s  {1e3 * draw_time / args.samples:8.3f} ms per sample")
    print(f"solve {solve_time:7.2f} s  {1e3 * solve_time / args.samples:8.3f} ms per sample")
    print(f"iterations {min(iterations)} to {max(iterations)}, mean {np.mean(iterations):.1f}")
    print(f"largest residual {worst:.1e}, not converged {failed}")
    if args.store is not None:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            make(
                benchmark("darcy"),
                Path(folder) / "darcy",
                size=args.store,
                samples=args.samples,
                device=args.device,
            )
            print(f"drawn, solved, stored and hashed in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
