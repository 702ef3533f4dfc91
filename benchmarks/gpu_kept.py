"""What does a round cost on a GPU where clients keep a model or a part of one, and how much of it are copies?

The CNN of `gpu.py` (1.6 million weights), random images, a cohort of 50 of 200 clients with 50 rows each, tf32. FedAvg
is beside the personal methods. The time is that of everything in a round; kernels and copies are the device's own, by a
profiler, over the last rounds. `--keep 0` leaves nothing of what clients keep on the device between rounds.
`--code` names the code whose sources are imported, if they are not those beside this file.
"""

from __future__ import annotations

import hashlib
import inspect
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import fedscape as fs
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, models
from fedscape.personal import Ditto, FedPer, FedRep, PFedMe
from table import arguments, report_each

CUDA = torch.cuda.is_available()
METHODS = {"Ditto": Ditto, "pFedMe": PFedMe, "FedRep": FedRep, "FedAvg": FedAvg, "FedPer": FedPer}


def main() -> None:
    args = arguments(__doc__, only="", rounds=30, out="", keep=-1.0, code="")
    report_each("gpu_kept", lines(args), note=torch.cuda.get_device_name() if CUDA else "no GPU", out=args.out)


def lines(args: Any) -> Iterator[dict[str, Any]]:
    for name, method in METHODS.items():
        if not args.only or name in args.only.split(","):
            keep = "half of free memory" if args.keep < 0 else args.keep
            yield {"code": args.code, "method": name, "keep": "" if args.code else keep, **one(method, args)}


def one(method: Any, args: Any) -> dict[str, Any]:
    fed, local, cohort = task(args.quick)
    if "keep_on_device" in inspect.signature(LocalSGD).parameters and args.keep >= 0:
        local = replace(local, keep_on_device=args.keep)
    engine, times = fs.Local(fed, threads=1), []
    n_rounds = 4 if args.quick else args.rounds
    profiled = max(2, n_rounds // 6)
    how: dict[str, Any] = {"sampler": fs.FixedSize(cohort), "measure": 0, "seed": args.seed}
    loop = fs.rounds(method(local), engine, n_rounds=n_rounds, **how)
    for r in loop:
        times.append(r.seconds)
        if r.index == n_rounds - profiled - 1:
            break
    line = {"first round s": times[0], "ms": 1000 * statistics.median(times[len(times) // 2 :])}
    line |= {"later ms": 1000 * statistics.fmean(times[-profiled:])}
    return {**line, **(by_device(loop, profiled) if CUDA else {}), **looked_at(engine)}


def by_device(loop: Any, n_rounds: int) -> dict[str, Any]:
    """Milliseconds of a round in kernels and in copies between host and device."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in loop:
            pass
        torch.cuda.synchronize()
    took = {"ms in kernels": 0.0, "ms up": 0.0, "ms down": 0.0}
    for e in found.key_averages():
        what = "ms up" if "HtoD" in e.key else "ms down" if "DtoH" in e.key else "ms in kernels"
        took[what] += float(e.self_device_time_total) / n_rounds / 1000
    return {**took, "GB on device": torch.cuda.max_memory_allocated() / 1e9}


def looked_at(engine: fs.Local) -> dict[str, Any]:
    """Seconds until all that clients keep is in host memory, its size, and a digest to compare runs by."""
    began = time.perf_counter()
    kept = engine.kept()
    took = time.perf_counter() - began
    size = sum(v.flat.nbytes for v in kept.values()) / 1e9
    digest = hashlib.sha256(b"".join(v.flat.tobytes() for _, v in sorted(kept.items()))).hexdigest()[:16]
    return {"s to look": took, "GB kept": size, "bytes": digest}


def task(quick: bool) -> tuple[fs.Federation, LocalSGD, int]:
    rng, clients, rows, cohort = np.random.default_rng(0), 200, 50, 50
    if quick:
        clients, rows, cohort = 8, 10, 4
    x = rng.integers(0, 256, (clients * rows, 32, 32, 3), dtype=np.uint8)
    y = rng.integers(0, 10, clients * rows)
    fed = fs.Federation({"x": x, "y": y}, np.arange(0, clients * rows + 1, rows))
    torch.manual_seed(0)  # the same weights in every process
    model = models.cnn((3, 32, 32), 10, dropout=False)
    where: dict[str, Any] = {"device": "cuda", "precision": "tf32"} if CUDA else {}
    return fed, LocalSGD(model, cross_entropy, lr=0.01, epochs=1, batch_size=10, **where), cohort


if __name__ == "__main__":
    main()
