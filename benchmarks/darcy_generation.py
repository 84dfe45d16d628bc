"""Time the draw and the solve of Darcy samples, without storing them.

OMP_NUM_THREADS=2 python benchmarks/darcy_generation.py --samples 1200 --nodes 85
python benchmarks/darcy_generation.py --samples 1200 --nodes 421 --device cuda
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from ono.physics import darcy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=1200)
    parser.add_argument("--nodes", type=int, default=85)
    parser.add_argument("--batch", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="that draw")
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


if __name__ == "__main__":
    main()
