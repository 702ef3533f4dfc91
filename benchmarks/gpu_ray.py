"""Do several processes with a GPU each (or a share of one) end in the bytes of one process, and what is a round then?

The CNN of `gpu.py` (1.6 million weights), random images, a cohort of 50 clients with 50 rows each. Every way trains the
same groups of `--group` clients: `Local` one after the other, the workers of `Ray` side by side. With fewer GPUs than
workers they share them. Without a GPU a small network is trained on the CPU.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import fedscape as fs
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, models
from table import arguments, report_each

CUDA = torch.cuda.is_available()


def main() -> None:
    args = arguments(__doc__, products="tf32,bf16" if CUDA else "exact", workers="0,2,1", rounds=30, group=25, out="")
    report_each("gpu_ray", lines(args), note=torch.cuda.get_device_name() if CUDA else "no GPU", out=args.out)


def lines(args: Any) -> Iterator[dict[str, Any]]:
    for precision in args.products.split(","):
        first = ""
        for workers in (int(w) for w in args.workers.split(",")):
            line = one(precision, workers, args)
            yield {**line, "same bytes": "" if not first else "yes" if first == line["bytes"] else "NO"}
            first = first or line["bytes"]


def one(precision: str, workers: int, args: Any) -> dict[str, Any]:
    """Rounds on `Local` (workers 0) or on this many workers: milliseconds, and a digest of the last state."""
    fed, model, cohort = task(args.quick or not CUDA)
    group = min(args.group, max(1, cohort // 2))
    device = "cuda" if CUDA else "cpu"
    local = LocalSGD(
        model, cross_entropy, lr=0.01, epochs=1, batch_size=10, device=device, precision=precision, group_size=group
    )
    share = min(1.0, torch.cuda.device_count() / workers) if CUDA and workers else 0.0
    engine = fs.Ray(fed, workers=workers, gpus_per_worker=share) if workers else fs.Local(fed, threads=1)
    n_rounds = 4 if args.quick else args.rounds
    how: dict[str, Any] = {"sampler": fs.FixedSize(cohort), "measure": 0, "seed": args.seed}
    try:
        loop = fs.rounds(FedAvg(local), engine, n_rounds=n_rounds, **how)
        times = [r.seconds for r in loop]
    finally:
        if isinstance(engine, fs.Ray):
            engine.close()
    digest = hashlib.sha256(b"".join(v.tobytes() for _, v in sorted(loop.state.items()))).hexdigest()[:16]
    line = {"products": precision, "engine": f"Ray, {workers} workers" if workers else "Local", "group": group}
    return {**line, "first round s": times[0], "ms": 1000 * statistics.median(times[n_rounds // 2 :]), "bytes": digest}


def task(small: bool) -> tuple[fs.Federation, Any, int]:
    rng, clients, rows, cohort = np.random.default_rng(0), 1_000, 50, 50
    torch.manual_seed(0)
    model = models.cnn((3, 32, 32), 10, dropout=False)
    if small:
        clients, rows, cohort, model = 40, 10, 8, models.mlp(32 * 32 * 3, 16, 10)
    x = rng.integers(0, 256, (clients * rows, 32, 32, 3), dtype=np.uint8)
    y = rng.integers(0, 10, clients * rows)
    return fs.Federation({"x": x, "y": y}, np.arange(0, clients * rows + 1, rows)), model, cohort


if __name__ == "__main__":
    main()
