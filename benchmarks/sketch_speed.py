"""How fast is a sketch, beside the matrix product it cannot do without?

784-dimensional rows, R = 1000 x 6 bits, one thread: rows per second of the bare float32 product, of the sketch, and of
a plain NumPy way (product, signs, codes, one bincount per row of the sketch). Then pairwise distances of many clients,
and a long stream in flat memory.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

import fedscape as fs
from fedscape.sketches import pairwise
from table import arguments, report

R, BITS, D = 1000, 6, 784


def seconds_of(work: Callable[[], object]) -> float:
    """Processor time on one thread: others on the machine do not count."""
    began = time.process_time()
    work()
    return time.process_time() - began


def plain(x: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """The NumPy way, batch by batch."""
    counts = np.zeros((R, 2**BITS), dtype=np.int64)
    for begin in range(0, len(x), 1024):
        signs = (x[begin : begin + 1024] @ directions > 0).reshape(-1, R, BITS)
        codes = signs @ (1 << np.arange(BITS))
        for r in range(R):
            counts[r] += np.bincount(codes[:, r], minlength=2**BITS)
    return counts


def hashing(n: int, times: int) -> list[dict]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, D)).astype(np.float32)
    bytes_ = rng.integers(0, 256, (n, D)).astype(np.uint8)
    directions = rng.normal(size=(D, R * BITS)).astype(np.float32)
    out = np.empty((2048, R * BITS), dtype=np.float32)
    dense = fs.DistributionSketch(R, bits=BITS)
    centred = fs.DistributionSketch(R, bits=BITS, centre=128.0)
    structured = fs.DistributionSketch(R, bits=BITS, family="hadamard")

    def product() -> None:
        for begin in range(0, n, 2048):
            np.matmul(x[begin : begin + 2048], directions, out=out[: min(2048, n - begin)])

    ways = {
        "float32 product alone, blocks of 2,048": product,
        "sketch of float32 rows": lambda: dense.count(x),
        "sketch of bytes, centred": lambda: centred.count(bytes_),
        "sketch by structured projections": lambda: structured.count(x),
        "NumPy: product, signs, codes, bincount": lambda: plain(x, directions),
    }
    with threadpool_limits(1):
        dense.count(x[:1024])
        structured.count(x[:16])
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(times):  # in turn, so that all meet the same neighbours on the machine
            for way, work in ways.items():
                taken[way].append(seconds_of(work))
    bare = taken["float32 product alone, blocks of 2,048"]
    return [
        {
            "what": way,
            "rows/s": n / min(seconds),
            "share of the product's rate": min(bare) / min(seconds),
            "median of paired shares": float(np.median(np.array(bare) / np.array(seconds))),
        }
        for way, seconds in taken.items()
    ]


def all_pairs(n: int) -> dict:
    rng = np.random.default_rng(1)
    s = rng.dirichlet(np.ones(16), (n, 200))
    seconds = seconds_of(lambda: pairwise(s, sizes=np.full(n, 50)))
    return {"what": f"pairwise distances of {n:,} clients (200 x 16)", "seconds": seconds}


def stream(n: int) -> list[dict]:
    """Rows made on the fly, R = 100 x 4 bits: memory must not grow."""
    rng = np.random.default_rng(2)
    base = rng.normal(size=(65_536, 16)).astype(np.float32)
    sketch = fs.DistributionSketch(100, bits=4)
    total = sketch.count(base[:1024])
    marks, seen, began = [], 1024, time.process_time()
    for mark in (n // 10, n):
        while seen < mark:
            total += sketch.count(base[: min(65_536, mark - seen)])
            seen += min(65_536, mark - seen)
        marks.append(
            {
                "what": f"stream of {mark:,} rows (16-d, 100 x 4 bits)",
                "seconds": time.process_time() - began,
                "peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    assert int(total[0].sum()) == n
    return marks


def main() -> None:
    args = arguments(__doc__)
    with threadpool_limits(1):
        marks = stream(200_000 if args.quick else 10_000_000)
    rows = hashing(4096 if args.quick else 16_384, 2 if args.quick else 5)
    report("sketch_speed", rows, note="one thread, processor time; the best of the repetitions, taken in turn")
    print()
    with threadpool_limits(1):
        rows = [*marks, all_pairs(1000 if args.quick else 10_000)]
    report("sketch_speed_pairs", rows, note="one thread, processor time")


if __name__ == "__main__":
    main()
